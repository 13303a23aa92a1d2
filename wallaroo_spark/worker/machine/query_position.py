"""The query's position, as the driver reports it: committed references, and rewinds.

Source: ``docs/architecture.md#rules``, rules 1 and 2; ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.buffer.held_stream import HeldStream
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import Connection
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.resend import Resend


class QueryPosition:
    """Follows the newest epoch and batch of the driver's notices. Stale notices are counted and ignored."""

    def __init__(self, connections: Connections, gates: Gates, resend: Resend) -> None:
        self.epoch = 0
        self.batch = -1
        self._connections = connections
        self._gates = gates
        self._resend = resend

    def committed(self, event: e.Committed) -> None:
        """Spark has committed a batch."""
        if event.epoch != self.epoch or event.batch <= self.batch:
            self._connections.counts["stale-commits"] += 1
            return
        self.batch = event.batch
        buffer = self._connections.buffer
        before = buffer.held
        moved = buffer.commit(event.references)
        self._connections.counts["commits"] += 1
        buffer.commit_ages.take(self._connections.counts, event.told_at)
        self._connections.ends.forgotten(event.references)
        if self._connections.traced is not None and event.told_at is not None:
            self._connections.traced.committed(event.references, event.batch, event.told_at)
        self._connections.flow.committed(event.now, event.batch, before - buffer.held, buffer.used)
        self._moved(moved)
        self._connections.ends.told(event.leaving, event.ended)

    def rewound(self, event: e.Rewound) -> bool:
        """A query continues from exactly these references. Returns False when the notice is stale."""
        if event.epoch < self.epoch or (event.epoch == self.epoch and event.batch < self.batch):
            self._connections.counts["stale-commits"] += 1
            return False
        buffer = self._connections.buffer
        for key in self._connections.ends.gone(event.references):
            buffer.forget_committed(key)
        before = {stream.key: stream.committed for stream in buffer.streams.values()}
        back = buffer.rewind(event.references)
        buffer.commit_ages.take(self._connections.counts, None)
        self.epoch, self.batch = event.epoch, event.batch
        self._connections.ends.rewound(event.references)
        self._connections.ends.told(event.leaving, ())
        self._connections.flow.restart(event.batch)
        self._resend.send_again(back, "the query went back")
        behind = set(back)
        for stream in [buffer.streams[key] for key in back if key in buffer.streams]:
            self._connections.tidy(stream)
        streams = [stream for stream in buffer.streams.values() if stream.key not in behind]
        self._moved([stream for stream in streams if stream.committed != before[stream.key]])
        return True

    def _moved(self, streams: Iterable[HeldStream]) -> None:
        """Acknowledge to the senders, forget streams that are not needed any more, and let more messages in."""
        connections = self._connections
        keys: dict[int | None, list[StreamKey]] = {}
        for stream in streams:
            keys.setdefault(stream.owner, []).append(stream.key)
            connections.tidy(stream)
        for connection in self._concerned(keys):
            self._gates.acknowledge_streams(connection, keys.get(connection.number, ()))

    def _concerned(self, owners: Collection[int | None]) -> list[Connection]:
        """The sessions that get a frame after a commit: under pressure all, because a read may need any of them."""
        connections = self._connections
        if connections.flow.pressure(connections.buffer.used) is not Pressure.NONE:
            return list(connections.streaming.values())
        found = (connections.streaming.get(owner) for owner in owners if owner is not None)
        return [connection for connection in found if connection is not None]
