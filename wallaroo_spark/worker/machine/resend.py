"""Makes senders resend: by NACK where the revision has it, otherwise by reconnecting.

Source: ``docs/decisions/v3-leaves-by-closing.md``; ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wallaroo_spark.protocol import Nack, StreamState
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine.connection_state import Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import Connections


class Resend:
    """Has streams resent from their committed references."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def send_again(self, keys: Iterable[StreamKey], why: str) -> None:
        """Ask the sessions that send these streams, or may have sent rows that are not committed, to resend."""
        # All sessions are found before the first is asked, because a session that ends removes its streams' entries.
        pairs = [(connection, key) for key in keys for connection in self._senders(key)]
        for connection, key in pairs:
            if connection.phase is ConnectionPhase.STREAMING:
                self._tell(connection, key, why)

    def _senders(self, key: StreamKey) -> Iterator[Connection]:
        """The owner of the stream; otherwise the sessions that were sent its reference or may be about to send it."""
        connections = self._connections
        stream = connections.buffer.streams.get(key)
        if stream is not None and stream.owner is not None:
            yield connections.by_number[stream.owner]
            return
        if key.scope:
            if key.scope in connections.senders:
                yield connections.senders[key.scope]
            return
        may = [c for c in connections.streaming.values() if c.revision.stream_scope == "source"]
        knows = [c for c in may if c.protocol.streams.get(key.stream_id).state is not StreamState.START]
        yield from knows or (may if stream is None else [])

    def _tell(self, connection: Connection, key: StreamKey, why: str) -> None:
        connections, stream_id = self._connections, key.stream_id
        connections.counts["resends"] += 1
        known = connection.protocol.streams.get(stream_id).state is not StreamState.START
        if known and connection.revision.has(Nack):
            reference = connections.buffer.reference(key)
            connections.log(connection, f"must send stream {stream_id} again behind {reference}: {why}")
            connections.send(connection, connection.protocol.nack(stream_id, reference))
            if key in connection.streams:
                connection.open.add(key)
        else:
            connections.send_off(connection, f"stream {stream_id} is needed again: {why}")
