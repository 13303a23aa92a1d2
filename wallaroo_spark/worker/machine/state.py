"""A worker's state as a pure machine: events in, instructions out; no socket, Redis, thread or clock.

``handle`` takes an event of :mod:`.events` and returns instructions that the shell carries out in their order. Bad
input from one session ends that session and does not affect another. The parts, each built on those before it:

- :mod:`.connections` -- connections come and go
- :mod:`.pressure.gates` -- credits, and which sockets are read
- :mod:`.handshake` -- HELLO to OK
- :mod:`.resend` -- senders are made to go back
- :mod:`.streams` -- NOTIFY and claims
- :mod:`.arrivals` -- frames become rows
- :mod:`.query_position` -- the driver's notices about the query
- :mod:`.pressure.shedding` -- a full buffer gives way
- :mod:`.pressure.unfinished_frames` -- unfinished frames when the buffer is full

Source: ``docs/architecture.md#rules``, rules 1 to 7; ``docs/protocol.md#session-states``,
``docs/protocol.md#rewinding`` and ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from typing import Any

from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion
from wallaroo_spark.options import Options
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.buffer.offers import offer
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.arrivals import Arrivals
from wallaroo_spark.worker.machine.connections import Connections
from wallaroo_spark.worker.machine.handshake import Handshake
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.pressure.shedding import Shedding
from wallaroo_spark.worker.machine.pressure.unfinished_frames import UnfinishedFrames
from wallaroo_spark.worker.machine.query_position import QueryPosition
from wallaroo_spark.worker.machine.resend import Resend
from wallaroo_spark.worker.machine.story import Story
from wallaroo_spark.worker.machine.streams import Streams


class WorkerState:
    """The whole state of a worker. ``cookie`` is the resolved secret."""

    def __init__(self, options: Options, origin: Origin, cookie: str) -> None:
        self.connections = Connections(options, origin, cookie)
        self.buffer = self.connections.buffer
        self.flow = self.connections.flow
        self._gates = Gates(self.connections)
        self._handshake = Handshake(self.connections, self._gates)
        resend = Resend(self.connections)
        self._streams = Streams(self.connections, self._gates, resend)
        self._position = QueryPosition(self.connections, self._gates, resend)
        self._arrivals = Arrivals(self.connections, self._gates, self._handshake, self._streams)
        self._shedding = Shedding(self.connections, self._gates, resend)
        self._unfinished_frames = UnfinishedFrames(self.connections, self._gates)
        self.story = Story()

    def bound(self, connections: int | None, sessions: int | None) -> None:
        """Accept no more connections and sessions than the process has open files for; None: no limit."""
        self.connections.room = connections
        self._handshake.most = sessions

    @property
    def ready(self) -> bool:
        """Whether the driver has sent the query's references."""
        return self._handshake.ready

    @property
    def epoch(self) -> int:
        """Number of the query's start; it grows."""
        return self._position.epoch

    def handle(self, event: e.Event) -> list[e.Instruction]:
        """Handle one event. Returns the instructions, in order.

        An error of this program ends the sessions of the event. When the event has none, or when ending them fails, the
        error is raised, and this state must not be used any more.
        """
        version, cursor = self.buffer.version, self.connections.following.cursor
        try:
            self._handle(event)
        except Exception as error:
            number: int | None = getattr(event, "connection", None)
            if number is None:
                self.story.add(self.connections.now, event, self.connections.out, repr(error))
                raise
            if isinstance(event, e.Claimed):
                # The registry has claimed these; those without a stream are released.
                self.connections.claims |= event.granted
            self.connections.give_up([number], error)
            if isinstance(event, e.Disconnected):
                self.connections.forget(number)
        self._shedding.shed()
        self._gates.settle()
        out, self.connections.out = self.connections.out, []
        if self.buffer.version != version:
            out.append(e.WakeReaders())
        if self.connections.following.cursor != cursor:
            out.append(e.WakeDriver())
        self.story.add(self.connections.now, event, out)
        return out

    def _handle(self, event: e.Event) -> None:
        match event:
            case e.Received():
                self._arrivals.take_in(event.parts, event.received_at)
            case e.Connected():
                self.connections.connected(event)
            case e.Holding():
                self.connections.hold(event)
            case e.Undelivered():
                self._arrivals.lost(event)
            case e.Violated():
                self.connections.violated(event)
            case e.Disconnected():
                self.connections.disconnected(event)
            case e.Assigned():
                self._handshake.assigned(event)
            case e.Claimed():
                self._streams.claimed(event)
            case e.ClaimsLost():
                self._streams.lost(event)
            case e.RegistryFailed():
                self.connections.counts["registry-failures"] += 1
                (self._streams if event.streams else self._handshake).unanswered(event)
            case e.Committed():
                if self._position.committed(event):
                    self._handshake.told()
            case e.Rewound():
                if self._position.rewound(event):
                    self._handshake.begin()
                    self._handshake.told()
            case e.GiveUp():
                self.connections.following.give_up(event.planned)
            case e.Wanted():
                self._gates.want(event.ranges)
            case e.ReadBegan():
                self.connections.ends.read(event.leaving, event.behind)
            case e.Stuck():
                self.connections.stuck(event)
            case e.Tick():
                self.connections.tick(event.now)
                self._unfinished_frames.tick(event.now)
            case e.Stopping():
                self.connections.stop(event.reason)

    def offer(self, question: PlanQuestion) -> PlanAnswer:
        """How far a batch may go on this worker."""
        answer = offer(self.buffer, question)
        return self.connections.ends.report(answer, self.buffer.streams.keys(), question.behind)

    @property
    def has_ends_to_report(self) -> bool:
        """Whether a plan should hear of ended streams, though there may be no rows."""
        return self.connections.ends.any_unrecorded

    def activity(self) -> list[dict[str, Any]]:
        """For each session: its instance, the time of its last bytes (µs since 1970 UTC), its number of open streams.

        ``streams`` is the number of announced streams, including ended ones.
        """
        return [
            {
                "instance": connection.instance,
                "last_at": connection.last_at,
                "open": len(connection.open),
                "streams": len(connection.protocol.streams),
            }
            for connection in self.connections.streaming.values()
        ]

    def traced(self, after: int) -> list[dict[str, Any]]:
        """See :meth:`.traced_messages.TracedMessages.finished`."""
        return [] if self.connections.traced is None else self.connections.traced.finished(after)

    def status(self) -> dict[str, Any]:
        """The status for an operator, as JSON-ready values by the names of ``observe.receiver.SlotStatus``."""
        return {
            "slot": self.connections.slot,
            "ready": self.ready,
            "epoch": self.epoch,
            "batch": self._position.batch,
            "sessions": len(self.connections.streaming),
            "connected": (names := self.connections.instances()),
            "instances": len(names),
            "streams": len(self.buffer.streams),
            "memory_used": self.buffer.used,
            "unfinished_bytes": self.buffer.unfinished,
            "memory_budget": self.buffer.budget,
            "pressure": self.flow.pressure(self.buffer.used).name.lower(),
            "counts": dict(self.connections.counts),
        }
