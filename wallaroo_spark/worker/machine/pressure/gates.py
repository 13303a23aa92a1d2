"""Grants credits in ACK frames, and decides which sockets are not read for now.

Source: ``docs/protocol.md#credits``; ``docs/architecture.md#rules``, rules 1 and 6.
"""

from __future__ import annotations

from collections.abc import Iterable

from wallaroo_spark.protocol import SessionState
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.connections import Client, Phase
from wallaroo_spark.worker.machine.pressure.flow import Pressure
from wallaroo_spark.worker.machine.sessions import Sessions


class Gates:
    """Applies :class:`~.flow.FlowControl` to the sessions. ``waited`` are the ranges that reads wait for."""

    def __init__(self, sessions: Sessions) -> None:
        self.waited: tuple[PlannedRange, ...] = ()
        self._sessions = sessions
        self._wanted: frozenset[StreamKey] = frozenset()
        self._wanted_of: dict[str, list[StreamKey]] = {}
        self._known: dict[str, bool] = {}
        self._known_at = 0
        self._pressure = Pressure.NONE
        self._full = False

    def want(self, ranges: tuple[PlannedRange, ...]) -> None:
        """The ranges that reads are waiting for now."""
        self.waited = ranges
        self._wanted = frozenset(planned.key for planned in ranges)
        self._wanted_of.clear()
        for key in self._wanted:
            self._wanted_of.setdefault(key.scope, []).append(key)
        self._known.clear()
        self._sessions.flow.waiting = bool(ranges)
        self.regulate_all()

    def settle(self) -> None:
        """After every event: apply a change of pressure to all sessions, and grant credits when they are available
        again.
        """
        flow, used = self._sessions.flow, self._sessions.buffer.used
        pressure, full = flow.pressure(used), flow.full(used)
        if pressure is not self._pressure:
            self._pressure = pressure
            self.regulate_all()
        if self._full and not full:
            for client in self._sessions.streaming.values():
                self.acknowledge(client)
        self._full = full

    def acknowledge(self, client: Client, references: Iterable[tuple[int, int]] = ()) -> None:
        """One ACK with these committed references and the credits that are due; none when there is neither."""
        if client.phase is not Phase.STREAMING or client.protocol.state is not SessionState.STREAMING:
            # A session that is about to be told ERROR is told nothing before it.
            return
        sessions = self._sessions
        pairs = tuple(references)
        credits = sessions.flow.top_up(
            client.protocol.credits.available,
            sessions.buffer.used,
            len(sessions.streaming),
            needed=self._needed(client),
        )
        if pairs or credits:
            sessions.send(client, client.protocol.ack(credits, pairs))

    def tell(self, client: Client, keys: Iterable[StreamKey]) -> None:
        """:meth:`acknowledge` the committed references of these streams of a session, or of none.

        A sender may forget what is acknowledged, and with opaque ids only its repetition shows where it begins. So a
        stream that is still being repeated is acknowledged when the repetition is complete.
        """
        references = []
        for key in keys:
            ledger, reference = self._sessions.buffer.ledgers.get(key), self._sessions.buffer.reference(key)
            if ledger is not None and ledger.repeating:
                client.untold.add(key)
            elif reference is not None:
                client.untold.discard(key)
                references.append((key.stream_id, reference))
        self.acknowledge(client, references)

    def regulate(self, client: Client) -> None:
        """Decide whether to read from a session's socket."""
        streaming = client.phase is Phase.STREAMING
        used = self._sessions.buffer.used
        may_read = self._sessions.flow.may_read(used, streaming=streaming, needed=self._needed(client))
        paused = not may_read and client.turn is None
        if paused != client.paused:
            client.paused = paused
            self._sessions.out.append(e.PauseReading(client.session) if paused else e.ResumeReading(client.session))
            if not paused:
                self.acknowledge(client)

    def regulate_all(self) -> None:
        """:meth:`regulate` for every session."""
        for client in self._sessions.clients.values():
            self.regulate(client)

    def drains(self) -> bool:
        """Whether the held rows leave the buffer by themselves: they are read now, or a batch can take some."""
        buffer = self._sessions.buffer
        if self.waited:
            return any(buffer.find(planned) is not None for planned in self.waited)
        return buffer.plannable()

    def _needed(self, client: Client) -> bool:
        """:meth:`needed`, under soft pressure; under any other pressure it does not matter."""
        soft = self._sessions.flow.pressure(self._sessions.buffer.used) is Pressure.SOFT
        return soft and self.needed(client)

    def needed(self, client: Client) -> bool:
        """Whether a waiting read may need what this session sends."""
        if not client.streams or not self._wanted.isdisjoint(client.streams):
            return True
        return self._lacks_sender(client.key(0).scope)

    def _lacks_sender(self, scope: str) -> bool:
        """Whether no session sends one of the streams of a scope that reads wait for: its NOTIFY may be on its way.

        This is computed once until a stream gets a sender or loses one, and not once for each session.
        """
        if self._known_at != self._sessions.turnover:
            self._known_at = self._sessions.turnover
            self._known.clear()
        if scope not in self._known:
            self._known[scope] = any(self._unsent(key) for key in self._wanted_of.get(scope, ()))
        return self._known[scope]

    def _unsent(self, key: StreamKey) -> bool:
        ledger = self._sessions.buffer.ledgers.get(key)
        return ledger is None or ledger.owner is None
