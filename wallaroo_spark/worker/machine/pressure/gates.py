"""Grants credits in ACK frames, and decides which sockets are not read for now.

Source: ``docs/protocol.md#credits``; ``docs/architecture.md#rules``, rules 1 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable

from wallaroo_spark.protocol import SessionState
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connection_state import Connection, ConnectionPhase
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.pressure.flow import DOOR_CREDITS, Pressure


class Gates:
    """Applies :class:`~.flow.FlowControl` to the sessions, with the memory that the buffer uses.

    ``waited`` are the ranges that reads wait for.
    """

    def __init__(self, connections: Connections) -> None:
        self.waited: tuple[PlannedRange, ...] = ()
        self._sessions, self._buffer, self._flow = connections, connections.buffer, connections.flow
        self._wanted: frozenset[StreamKey] = frozenset()
        self._wanted_of: dict[str, list[StreamKey]] = {}
        self._known: dict[str, bool] = {}
        self._known_at = 0
        self._pressure = Pressure.NONE
        self._passing = False
        """Whether a session was regulated under a pressure that may not outlast the event."""

    def pressure(self) -> Pressure:
        """How full the buffer is now."""
        return self._flow.pressure(self._buffer.used)

    def want(self, ranges: tuple[PlannedRange, ...]) -> None:
        """Set the ranges that reads wait for now."""
        self.waited = ranges
        self._wanted = frozenset(planned.key for planned in ranges)
        self._wanted_of.clear()
        for key in self._wanted:
            self._wanted_of.setdefault(key.scope, []).append(key)
        self._known.clear()
        self._flow.waiting = bool(ranges)
        self.regulate_all()

    def settle(self) -> None:
        """Called after every event: apply a change of pressure to all sessions, and grant credits that have become
        free.
        """
        pressure, full = self.pressure(), self._flow.full(self._buffer.used)
        if pressure is not self._pressure or self._passing:
            self._pressure = pressure
            self.regulate_all()
            self._passing = False
        denied = self._sessions.denied
        if denied and not full:
            for connection in list(denied.values()):
                self.acknowledge(connection)
            denied.clear()

    def acknowledge(self, connection: Connection, references: Iterable[tuple[int, int]] = ()) -> None:
        """Send one ACK with these committed references and the due credits; none when there is neither."""
        if connection.phase is not ConnectionPhase.STREAMING or connection.protocol.state is not SessionState.STREAMING:
            # A session that is about to be sent an ERROR is sent no other frame before it.
            return
        sessions, used = self._sessions, self._buffer.used
        pairs = tuple(references)
        available = connection.protocol.credits.available
        if connection.door:
            credits = DOOR_CREDITS - available if available < DOOR_CREDITS // 2 else 0
        else:
            credits = self._flow.top_up(available, used, len(sessions.streaming), needed=self._needed(connection))
        if not credits and self._flow.denies(used):
            sessions.denied[connection.number] = connection
        if pairs or credits:
            sessions.counts["acks"] += 1
            sessions.counts["credits"] += credits
            sessions.send(connection, connection.protocol.ack(credits, pairs))

    def acknowledge_streams(self, connection: Connection, keys: Iterable[StreamKey]) -> None:
        """:meth:`acknowledge` the committed references of these streams of a session, or of none.

        A sender may forget what is acknowledged, and with opaque ids only its repetition shows where it begins. So a
        stream that is still being repeated is acknowledged when the repetition is complete.
        """
        references = []
        for key in keys:
            stream, reference = self._buffer.streams.get(key), self._buffer.reference(key)
            if stream is not None and stream.repeating:
                connection.unacknowledged.add(key)
            elif reference is not None:
                connection.unacknowledged.discard(key)
                references.append((key.stream_id, reference))
        self.acknowledge(connection, references)

    def regulate(self, connection: Connection) -> None:
        """Decide whether to read from a session's socket."""
        streaming = connection.phase is ConnectionPhase.STREAMING
        # The memory in use may fall again before the event ends, for example when a frame becomes complete.
        self._passing |= self.pressure() is not self._pressure
        may_read = self._flow.may_read(self._buffer.used, streaming=streaming, needed=self._needed(connection))
        paused = not may_read and connection.turn is None
        if paused != connection.paused:
            connection.paused = paused
            self._sessions.out.append(e.SetReading(connection.number, not paused))
            if paused:
                self._sessions.paused[connection.number] = connection
                self._sessions.counts[f"paused:{self.pressure().name.lower()}"] += 1
            else:
                del self._sessions.paused[connection.number]
                self.acknowledge(connection)

    def regulate_all(self) -> None:
        """:meth:`regulate` every session."""
        easy = self.pressure() is Pressure.NONE
        for connection in list((self._sessions.paused if easy else self._sessions.by_number).values()):
            self.regulate(connection)

    def drains(self) -> bool:
        """Whether held rows will leave the buffer: a read takes them now, or a batch can take some."""
        if self.waited:
            return any(self._buffer.find(planned) is not None for planned in self.waited)
        return self._buffer.plannable()

    def _needed(self, connection: Connection) -> bool:
        """:meth:`needed`, evaluated only under soft pressure, where it matters."""
        soft = self.pressure() is Pressure.SOFT
        return soft and self.needed(connection)

    def needed(self, connection: Connection) -> bool:
        """Whether a waiting read may need this session's messages."""
        if not connection.streams or not self._wanted.isdisjoint(connection.streams):
            return True
        return self._lacks_sender(connection.key(0).scope)

    def _lacks_sender(self, scope: str) -> bool:
        """Whether reads wait for a stream of this scope that no session sends: its NOTIFY may be on its way.

        The result is cached until a stream gets or loses its sender.
        """
        if self._known_at != self._sessions.turnover:
            self._known_at = self._sessions.turnover
            self._known.clear()
        if scope not in self._known:
            self._known[scope] = any(self._unsent(key) for key in self._wanted_of.get(scope, ()))
        return self._known[scope]

    def _unsent(self, key: StreamKey) -> bool:
        stream = self._buffer.streams.get(key)
        return stream is None or stream.owner is None
