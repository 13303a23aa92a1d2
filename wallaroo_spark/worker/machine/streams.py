"""Opens streams: by NOTIFY alone where an id belongs to its instance, by a claim where it belongs to the whole source.

Source: ``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Notify, NotifyReceived, StreamState
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connections import Client
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.resend import Recall
from wallaroo_spark.worker.machine.sessions import Sessions


class Streams:
    """Answers NOTIFY; asks the registry for stream ids that the slot has not claimed yet."""

    def __init__(self, sessions: Sessions, gates: Gates, recall: Recall) -> None:
        self._sessions = sessions
        self._gates = gates
        self._recall = recall
        self._asked: dict[int, int] = {}

    def notify(self, client: Client, event: NotifyReceived) -> None:
        """A stream is announced."""
        notify, key = event.notify, client.key(event.notify.stream_id)
        if client.revision.stream_scope == "instance":
            self._open(client, notify)
            self._bring_up_to_date(client, notify)
        elif event.already_open or self._taken(client, key):
            self._answer(client, notify.stream_id, success=False)
        elif notify.stream_id in self._sessions.claims:
            self._open_claimed(client, notify)
        else:
            client.asked[notify.stream_id] = notify
            client.to_ask.append(notify.stream_id)

    def ask(self, client: Client) -> None:
        """Ask the registry for all stream ids of one read at once."""
        if client.to_ask:
            self._sessions.out.append(e.AskClaims(client.session, tuple(client.to_ask)))
            self._asked.update(dict.fromkeys(client.to_ask, client.session))
            client.to_ask.clear()

    def _taken(self, client: Client, key: StreamKey) -> bool:
        """Whether another session here has the stream, or still needs the rows that it sent."""
        clients = self._sessions.clients
        asking = clients.get(self._asked.get(key.stream_id, client.session))
        if asking is not None and asking is not client and key.stream_id in asking.asked:
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
            if self._asked.get(stream_id) == event.session:
                del self._asked[stream_id]
            notify = client.asked.pop(stream_id, None) if client else None
            if client is None or notify is None:
                sessions.release(stream_id)
            elif stream_id in event.granted:
                self._open_granted(client, notify)
            else:
                self._answer(client, stream_id, success=False)
        if client:
            self._gates.acknowledge(client)

    def _open_granted(self, client: Client, notify: Notify) -> None:
        try:
            self._open_claimed(client, notify)
        except RemoteProtocolError as error:
            self._sessions.fault(client, error)
            self._sessions.release(notify.stream_id)
        except Exception as error:
            self._sessions.give_up([client.session], error)
            self._sessions.release(notify.stream_id)

    def unanswered(self, event: e.RegistryFailed) -> None:
        """The registry could not say whose these ids are, so they are refused."""
        client = self._sessions.clients.get(event.session)
        if client is not None:
            text = f"streams {list(event.streams)} are refused: the registry does not answer: {event.reason}"
            self._sessions.log(client, text, warning=True)
        self.claimed(e.Claimed(event.session, event.streams, frozenset()))

    def lost(self, event: e.ClaimsLost) -> None:
        """Another slot has these ids now: their held rows are sent again to that slot."""
        sessions = self._sessions
        keys = [StreamKey("", stream_id) for stream_id in event.streams & sessions.claims]
        sessions.claims -= event.streams
        ledgers = [sessions.buffer.ledgers[key] for key in keys if key in sessions.buffer.ledgers]
        self._recall.send_again(
            (ledger.key for ledger in ledgers if ledger.owner is not None), "another slot has the stream"
        )
        for ledger in ledgers:
            sessions.buffer.drop(ledger)
            sessions.tidy(ledger)

    def _bring_up_to_date(self, client: Client, notify: Notify) -> None:
        """Acknowledge what was committed between OK and NOTIFY: no later commit would tell the connector."""
        key = client.key(notify.stream_id)
        if self._sessions.buffer.reference(key) not in (None, notify.ref):
            self._gates.tell(client, [key])

    def _open_claimed(self, client: Client, notify: Notify) -> None:
        self._open(client, notify)
        self._answer(client, notify.stream_id, success=True)

    def _open(self, client: Client, notify: Notify) -> None:
        ledger = self._sessions.buffer.open(client.key(notify.stream_id), notify.name, notify.ref)
        before = self._sessions.clients.get(ledger.owner) if ledger.owner is not None else None
        if before is not None:
            before.streams.discard(ledger.key)
        ledger.owner = client.session
        self._sessions.turnover += 1
        client.streams.add(ledger.key)
        client.open.add(ledger.key)
        self._gates.regulate(client)

    def _answer(self, client: Client, stream_id: int, *, success: bool) -> None:
        reference = self._sessions.buffer.reference(client.key(stream_id))
        self._sessions.send(client, client.protocol.notify_ack(stream_id, reference, success=success))
