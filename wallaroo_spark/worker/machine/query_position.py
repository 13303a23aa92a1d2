"""The query's position, as the driver reports it: committed references, and rewinds.

Source: ``docs/architecture.md#rules``, rules 1 and 2; ``docs/protocol.md#rewinding``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from wallaroo_spark.references import Reference, StreamKey
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

    def committed(self, event: e.Committed) -> bool:
        """Spark has committed a batch, or the driver has told the references of more scopes. False when it is stale."""
        # What was recorded stays true, whatever the query does.
        self._connections.following.recorded(event.given_up)
        newer = event.batch > self.batch
        if event.epoch != self.epoch or event.batch < self.batch or not (newer or event.scopes):
            self._connections.counts["stale-commits"] += 1
            return False
        following = self._connections.following
        whole = following.take(event.scopes, event.cursor)
        if newer:
            self.batch = event.batch
            apart = set(whole)
            self._advance(
                event,
                {
                    key: reference
                    for key, reference in event.references.items()
                    if key.scope not in apart and following.knows(key.scope)
                },
            )
        self._set(event.references, whole)
        if newer:
            self._connections.ends.told(event.leaving, event.ended)
        return True

    def _advance(self, event: e.Committed, references: Mapping[StreamKey, Reference | None]) -> None:
        connections, buffer = self._connections, self._connections.buffer
        before = buffer.held
        moved = buffer.commit(references)
        connections.counts["commits"] += 1
        buffer.commit_ages.take(connections.counts, event.told_at)
        connections.ends.forgotten(references)
        if connections.traced is not None and event.told_at is not None:
            connections.traced.committed(references, event.batch, event.told_at)
        connections.flow.committed(event.now, event.batch, before - buffer.held, buffer.used)
        self._moved(moved)

    def rewound(self, event: e.Rewound) -> bool:
        """A query continues from exactly these references. Returns False when the notice is stale."""
        self._connections.following.recorded(event.given_up)
        if event.epoch < self.epoch or (event.epoch == self.epoch and event.batch < self.batch):
            self._connections.counts["stale-commits"] += 1
            return False
        connections = self._connections
        self.epoch, self.batch = event.epoch, event.batch
        connections.ends.restarted()
        connections.following.restart()
        connections.flow.restart(event.batch)
        self._set(event.references, connections.following.take(event.scopes, event.cursor))
        connections.ends.told(event.leaving, ())
        return True

    def _set(self, references: Mapping[StreamKey, Reference | None], scopes: Collection[str]) -> None:
        """These are all references of these scopes; references of others are passed over."""
        if not scopes:
            return
        connections, buffer, among = self._connections, self._connections.buffer, set(scopes)
        mine = {key: value for key, value in references.items() if value is not None and key.scope in among}
        for key in connections.ends.gone(mine, scopes):
            buffer.forget_committed(key)
        streams = [stream for scope in scopes for stream in buffer.of_scope(scope).values()]
        before = {stream.key: stream.committed for stream in streams}
        back = buffer.rewind(mine, scopes)
        buffer.commit_ages.take(connections.counts, None)
        connections.ends.rewound(mine, scopes)
        self._resend.send_again(back, "the query went back")
        behind = set(back)
        for stream in [buffer.streams[key] for key in back if key in buffer.streams]:
            connections.tidy(stream)
        self._moved([one for one in streams if one.key not in behind and one.committed != before[one.key]])

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
