"""Makes senders go back: by NACK where the revision has it, else by connecting again.

Source: ``docs/decisions/v3-leaves-by-closing.md``; ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wallaroo_spark.protocol import Nack, StreamState
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine.connections import Client, Phase
from wallaroo_spark.worker.machine.sessions import Sessions


class Recall:
    """Has streams sent again from their committed references."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def send_again(self, keys: Iterable[StreamKey], why: str) -> None:
        """Tell the sessions that send these streams, or that may have sent rows which are no longer committed."""
        # All are found before the first is told: a session that leaves takes with it what is known of its streams.
        pairs = [(client, key) for key in keys for client in self._senders(key)]
        for client, key in pairs:
            if client.phase is Phase.STREAMING:
                self._tell(client, key, why)

    def _senders(self, key: StreamKey) -> Iterator[Client]:
        """The owner; else the sessions that have been told of it, or may be about to send it."""
        sessions = self._sessions
        ledger = sessions.buffer.ledgers.get(key)
        if ledger is not None and ledger.owner is not None:
            yield sessions.clients[ledger.owner]
            return
        if key.scope:
            if key.scope in sessions.senders:
                yield sessions.senders[key.scope]
            return
        may = [c for c in sessions.streaming.values() if c.revision.stream_scope == "source"]
        knows = [c for c in may if c.protocol.streams.get(key.stream_id).state is not StreamState.START]
        yield from knows or (may if ledger is None else [])

    def _tell(self, client: Client, key: StreamKey, why: str) -> None:
        sessions, stream_id = self._sessions, key.stream_id
        known = client.protocol.streams.get(stream_id).state is not StreamState.START
        if known and client.revision.has(Nack):
            reference = sessions.buffer.reference(key)
            sessions.log(client, f"must send stream {stream_id} again behind {reference}: {why}")
            sessions.send(client, client.protocol.nack(stream_id, reference))
            if key in client.streams:
                client.open.add(key)
        else:
            sessions.send_off(client, f"stream {stream_id} is needed again: {why}")
