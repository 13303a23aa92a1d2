"""Streams are opened: by NOTIFY alone where an id belongs to its instance, by a claim where it is the whole source's.

Source: ``protocol.md``, section Stream states.
"""

from __future__ import annotations

from wallaroo_spark.protocol import Notify, NotifyReceived, StreamState, reasons
from wallaroo_spark.worker import events as e
from wallaroo_spark.worker.connection import Client
from wallaroo_spark.worker.gates import Gates
from wallaroo_spark.worker.ledger import StreamKey
from wallaroo_spark.worker.sessions import Sessions


class Streams:
    """Answers NOTIFY; asks the registry for stream ids that the slot has not claimed yet."""

    def __init__(self, sessions: Sessions, gates: Gates) -> None:
        self._sessions = sessions
        self._gates = gates

    def notify(self, client: Client, event: NotifyReceived) -> None:
        """A stream is announced."""
        notify, key = event.notify, client.key(event.notify.stream_id)
        if client.revision.stream_scope == "instance":
            self._open(client, notify)
        elif event.already_open or self._taken(client, key):
            self._answer(client, notify.stream_id, success=False)
        elif notify.stream_id in self._sessions.claims:
            self._open_claimed(client, notify)
        else:
            client.asked[notify.stream_id] = notify
            client.to_ask.append(notify.stream_id)

    def ask(self, client: Client) -> None:
        """Ask for all the ids that one read has brought, in one go."""
        if client.to_ask:
            self._sessions.out.append(e.AskClaims(client.session, tuple(client.to_ask)))
            client.to_ask.clear()

    def _taken(self, client: Client, key: StreamKey) -> bool:
        """Whether another session here has the stream, or what it sent is still needed by it."""
        clients = self._sessions.clients
        if any(key.stream_id in other.asked for other in clients.values() if other is not client):
            return True
        ledger = self._sessions.buffer.ledgers.get(key)
        if ledger is None or ledger.owner in (None, client.session):
            return False
        owner = clients[ledger.owner] if ledger.owner is not None else client
        return not ledger.empty or owner.protocol.streams.get(key.stream_id).state is not StreamState.CLOSED

    def claimed(self, event: e.Claimed) -> None:
        """The registry says which ids are this slot's."""
        sessions = self._sessions
        sessions.claims |= event.granted
        client = sessions.clients.get(event.session)
        for stream_id in event.asked:
            notify = client.asked.pop(stream_id, None) if client else None
            if client is None or notify is None:
                sessions.release(stream_id)
            elif stream_id in event.granted:
                self._open_claimed(client, notify)
            else:
                self._answer(client, stream_id, success=False)
        if client:
            self._gates.acknowledge(client)

    def failed(self, event: e.RegistryFailed) -> None:
        """The registry does not answer: a new session shall come back later, new streams of an old one are refused."""
        sessions, client = self._sessions, self._sessions.clients.get(event.session)
        sessions.counts["registry-failures"] += 1
        if client is None:
            return
        why = f"the registry does not answer: {event.reason}"
        if not event.streams:
            sessions.refuse(client, reasons.later(why))
            return
        sessions.log(client, f"streams {list(event.streams)} are refused: {why}")
        self.claimed(e.Claimed(event.session, event.streams, frozenset()))

    def _open_claimed(self, client: Client, notify: Notify) -> None:
        self._open(client, notify)
        self._answer(client, notify.stream_id, success=True)

    def _open(self, client: Client, notify: Notify) -> None:
        ledger = self._sessions.buffer.open(client.key(notify.stream_id), notify.name, notify.ref)
        ledger.owner = client.session
        client.streams.add(ledger.key)
        self._gates.regulate(client)

    def _answer(self, client: Client, stream_id: int, *, success: bool) -> None:
        reference = self._sessions.buffer.reference(client.key(stream_id))
        self._sessions.send(client, client.protocol.notify_ack(stream_id, reference, success=success))
