"""A worker's state as a pure machine: events in, instructions out; no socket, Redis, thread or clock.

``handle`` takes an event of :mod:`.events` and returns instructions that the shell carries out in their order. Bad
input from one session ends that session and does not affect another. The parts, each built on those before it:

- :mod:`.sessions` -- connections come and go
- :mod:`.pressure.gates` -- credits, and which sockets are read
- :mod:`.handshake` -- HELLO to OK
- :mod:`.resend` -- senders are made to go back
- :mod:`.streams` -- NOTIFY and claims
- :mod:`.arrivals` -- frames become rows
- :mod:`.progress` -- the driver's notices about the query
- :mod:`.pressure.shedding` -- a full buffer gives way
- :mod:`.pressure.fair_queue` -- unfinished frames when the buffer is full

Source: ``docs/architecture.md#rules``, rules 1 to 7; ``docs/protocol.md#session-states``,
``docs/protocol.md#rewinding`` and ``docs/protocol.md#points-of-reference``.
"""

from __future__ import annotations

from typing import Any

from wallaroo_spark.options import Options
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.arrivals import Arrivals
from wallaroo_spark.worker.machine.connections import Phase
from wallaroo_spark.worker.machine.handshake import Handshake
from wallaroo_spark.worker.machine.pressure.fair_queue import Turns
from wallaroo_spark.worker.machine.pressure.gates import Gates
from wallaroo_spark.worker.machine.pressure.shedding import Relief
from wallaroo_spark.worker.machine.progress import Progress
from wallaroo_spark.worker.machine.resend import Recall
from wallaroo_spark.worker.machine.sessions import Sessions
from wallaroo_spark.worker.machine.streams import Streams

_SERVING = (Phase.PARKED, Phase.ASKING, Phase.STREAMING)


class WorkerState:
    """The whole state of a worker. ``cookie`` is the secret itself, not its place."""

    def __init__(self, options: Options, origin: Origin, cookie: str) -> None:
        self.options = options
        self.sessions = Sessions(options, origin, cookie)
        self.buffer = self.sessions.buffer
        self.flow = self.sessions.flow
        self._gates = Gates(self.sessions)
        self._handshake = Handshake(self.sessions, self._gates)
        recall = Recall(self.sessions)
        self._streams = Streams(self.sessions, self._gates, recall)
        self._progress = Progress(self.sessions, self._gates, recall)
        self._arrivals = Arrivals(self.sessions, self._gates, self._handshake, self._streams)
        self._relief = Relief(self.sessions, self._gates, recall)
        self._turns = Turns(self.sessions, self._gates)

    @property
    def ready(self) -> bool:
        """Whether the driver has told the query's references."""
        return self._handshake.ready

    @property
    def epoch(self) -> int:
        """Grows with every start of the query."""
        return self._progress.epoch

    @property
    def claims(self) -> set[int]:
        """The stream ids that this slot has claimed of the whole source."""
        return self.sessions.claims

    def handle(self, event: e.Event) -> list[e.Instruction]:
        """Handle one event; returns the instructions, in order.

        An error of this program ends the sessions of the event. When the event has none, or when they cannot be ended
        in good order, the error is raised, and this state must not be used any more.
        """
        version = self.buffer.version
        try:
            self._handle(event)
        except Exception as error:
            session: int | None = getattr(event, "session", None)
            if session is None:
                raise
            self.sessions.give_up([session], error)
            if isinstance(event, e.Disconnected):
                self.sessions.clients.pop(session, None)
        self._relief.relieve()
        self._gates.settle()
        out, self.sessions.out = self.sessions.out, []
        if self.buffer.version != version:
            out.append(e.WakeReaders())
        return out

    def _handle(self, event: e.Event) -> None:
        match event:
            case e.Received():
                self._arrivals.take_in(event.parts, event.received_at)
            case e.Connected():
                self.sessions.connected(event)
            case e.Disconnected():
                self.sessions.disconnected(event)
            case e.Assigned():
                self._handshake.assigned(event)
            case e.Claimed():
                self._streams.claimed(event)
            case e.ClaimsLost():
                self._streams.lost(event)
            case e.RegistryFailed():
                self.sessions.counts["registry-failures"] += 1
                (self._streams if event.streams else self._handshake).unanswered(event)
            case e.Committed():
                self._progress.committed(event)
            case e.Rewound():
                if self._progress.rewound(event):
                    self._handshake.begin()
            case e.Wanted():
                self._gates.want(event.ranges)
            case e.Stuck():
                self.sessions.stuck(event)
            case e.Tick():
                self.sessions.tick(event.now)
                self._turns.tick(event.now)
            case e.Stopping():
                self.sessions.stop(event.reason)

    def instances(self) -> list[str]:
        """The connector instances that are served, or of which rows are held."""
        return sorted(self.sessions.instances())

    @property
    def assigned(self) -> set[str]:
        """The instances that are to be given back once no rows of them are held."""
        return self.sessions.assigned

    def activity(self) -> list[dict[str, Any]]:
        """Each session: its instance, when it last sent anything (µs since 1970 UTC), how many of its streams are open.

        ``streams`` is how many it has announced, the ended ones included.
        """
        return [
            {
                "instance": client.instance,
                "last_at": client.last_at,
                "open": len(client.open),
                "streams": len(client.protocol.streams),
            }
            for client in self.sessions.streaming.values()
        ]

    def status(self) -> dict[str, Any]:
        """The status for an operator, as JSON-ready values; bytes and counts."""
        return {
            "slot": self.sessions.slot,
            "ready": self.ready,
            "epoch": self.epoch,
            "batch": self._progress.batch,
            "sessions": len(self.sessions.streaming),
            "instances": self.instances(),
            "streams": len(self.buffer.ledgers),
            "buffered_bytes": self.buffer.used,
            "unfinished_bytes": self.buffer.unfinished,
            "budget_bytes": self.buffer.budget,
            "pressure": self.flow.pressure(self.buffer.used).name.lower(),
            "counts": dict(self.sessions.counts),
        }

    def validate(self) -> None:
        """Check the invariants; every test fixture ends with it."""
        self.buffer.validate()
        clients = self.sessions.clients
        for client in clients.values():
            assert (client.phase is Phase.STREAMING) == (client.session in self.sessions.streaming), client
            assert client.phase is Phase.STREAMING or not (client.streams or client.open or client.asked), client
            assert (client.session in self.sessions.serving) == (client.phase in _SERVING), client
            assert client.open <= client.streams, client
            assert not client.to_ask, client
            assert client.unfinished == (client.protocol.pending if client.phase is Phase.STREAMING else 0), client
            for key in client.streams:
                assert self.buffer.ledgers[key].owner == client.session, (client, key)
        assert self.buffer.unfinished == sum(client.unfinished for client in clients.values())
        assert self.sessions.early == sum(client.early for client in clients.values())
        for instance, client in self.sessions.senders.items():
            assert client.session in self.sessions.streaming, client
            assert client.instance == instance, client
        for ledger in self.buffer.ledgers.values():
            assert ledger.owner is None or ledger.key in clients[ledger.owner].streams, ledger
            assert not ledger.empty or (ledger.owner is not None and not ledger.ended), ledger
            assert ledger.key.scope or ledger.key.stream_id in self.claims, ledger
