"""A worker's state as a pure machine: events in, instructions out; no socket, Redis, thread or clock.

``handle`` takes an event of :mod:`.events` and returns instructions that the shell carries out in their order. Bad
input from one session ends that session and touches nothing of another. The parts, each on those before it:

- :mod:`.sessions` -- connections come and go
- :mod:`.gates` -- credits, and which sockets are read
- :mod:`.handshake` -- HELLO to OK
- :mod:`.recall` -- senders are made to go back
- :mod:`.streams` -- NOTIFY and claims
- :mod:`.progress` -- what the driver says of the query
- :mod:`.relief` -- a full buffer gives way

Source: ``design.md``, rules 1 to 7; ``protocol.md``, sections Session states, Rewinding and the rulings on references.
"""

from __future__ import annotations

from typing import Any

from wallaroo_spark.columnar import by_stream, decode_run
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import (
    EosReceived,
    ErrorReceived,
    Fault,
    HelloReceived,
    MessageRun,
    MessagesReceived,
    NotifyReceived,
    WorkerEvent,
    broken,
)
from wallaroo_spark.worker import events as e
from wallaroo_spark.worker.connection import Client, Phase
from wallaroo_spark.worker.gates import Gates
from wallaroo_spark.worker.handshake import Handshake
from wallaroo_spark.worker.ledger import Ledger, Origin
from wallaroo_spark.worker.progress import Progress
from wallaroo_spark.worker.recall import Recall
from wallaroo_spark.worker.relief import Relief
from wallaroo_spark.worker.sessions import Sessions
from wallaroo_spark.worker.streams import Streams

LONGEST_HELLO = 5 + 4 * (2 + 0xFFFF)
"""Bytes of a HELLO whose four fields are as long as they can be."""

_SERVING = (Phase.PARKED, Phase.ASKING, Phase.STREAMING)


class WorkerState:
    """All that a worker knows. ``cookie`` is the secret itself, not where it is kept."""

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
        self._relief = Relief(self.sessions, self._gates, recall)

    @property
    def ready(self) -> bool:
        """Whether the driver has said where the query stands."""
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
        """Take in one event; what is to be done, in order."""
        version = self.buffer.version
        self._handle(event)
        self._relief.relieve()
        self._gates.settle()
        return self._instructions(version)

    def give_up(self, session: int, what: str) -> list[e.Instruction]:
        """What is left to be done when ``handle`` has raised for an event of a session, which ends by this."""
        self.sessions.give_up(session, what)
        return self._instructions(-1)

    def _instructions(self, version: int) -> list[e.Instruction]:
        out, self.sessions.out = self.sessions.out, []
        if self.buffer.version != version:
            out.append(e.WakeReaders())
        return out

    def _handle(self, event: e.Event) -> None:
        match event:
            case e.Received():
                self._received(event)
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
            case e.Stopping():
                self.sessions.stop(event.reason)

    def _received(self, event: e.Received) -> None:
        client = self.sessions.clients.get(event.session)
        if client is None:
            return
        self.sessions.counts["bytes"] += len(event.data)
        client.last_at = event.received_at
        self.sessions.heard(client)
        try:
            client.protocol.receive(event.data)
            self._check_hello_size(client)
            while (found := client.protocol.next_event()) is not None:
                self._found(client, found, event.received_at)
        except RemoteProtocolError as error:
            self.sessions.fault(client, error)
            return
        self._streams.ask(client)
        self._gates.tell(client, client.untold & client.streams)
        self._gates.regulate(client)

    def _check_hello_size(self, client: Client) -> None:
        """Nobody who has not shown the cookie gets more memory than a HELLO takes."""
        if client.phase is Phase.GREETING and client.protocol.pending > LONGEST_HELLO:
            reason = f"{client.protocol.pending} bytes came without a whole HELLO; none is longer than {LONGEST_HELLO}"
            raise broken(Fault.FRAME_TOO_LONG, reason)

    def _found(self, client: Client, found: WorkerEvent, received_at: int) -> None:
        match found:
            case MessagesReceived():
                self._messages(client, found.run, received_at)
            case HelloReceived():
                self._handshake.hello(client)
            case NotifyReceived():
                self._streams.notify(client, found)
            case EosReceived():
                self._end(client, self.buffer.ledgers[client.key(found.stream_id)])
            case ErrorReceived():
                self.sessions.counts["peer-errors"] += 1
                self.sessions.log(client, f"gave up: {found.reason}")
                self.sessions.leave(client)

    def _messages(self, client: Client, run: MessageRun, received_at: int) -> None:
        sessions = self.sessions
        decoded = decode_run(run, event_time_unit=self.options.event_time_unit)
        admission = client.protocol.admit(decoded.spans, decoded.count, decoded.error)
        parts = by_stream(decoded, end=admission.end, ignored=admission.ignored)
        pairs = [(self.buffer.ledgers[client.key(part.stream_id)], part) for part in parts]
        self.flow.observe(decoded.count, int(decoded.sizes.sum()))
        before = self.buffer.rows
        try:
            self.buffer.append(pairs, received_at, client.instance)
        finally:
            accepted = self.buffer.rows - before
            sessions.counts["messages"] += accepted
            sessions.counts["replayed"] += sum(len(part.message_ids) for part in parts) - accepted
        for span in decoded.spans:
            if span.eos is not None and span.eos < admission.end and span.stream_id not in admission.ignored:
                self._end(client, self.buffer.ledgers[client.key(span.stream_id)])
        if admission.error is not None:
            raise admission.error

    def _end(self, client: Client, ledger: Ledger) -> None:
        """A stream has ended; when all of it is committed already, say so once more: the connector waits for it."""
        self.buffer.end(ledger)
        client.open.discard(ledger.key)
        if ledger.empty and self.buffer.reference(ledger.key) is not None:
            self._gates.tell(client, [ledger.key])
        self.sessions.tidy(ledger)

    def instances(self) -> list[str]:
        """The connector instances that are connected, or of which something is held."""
        names = {client.instance for client in self.sessions.streaming.values()}
        return sorted(names | {key.scope for key in self.buffer.ledgers if key.scope})

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
        """What an operator wants to know, as JSON-ready values; bytes and counts."""
        return {
            "slot": self.sessions.slot,
            "ready": self.ready,
            "epoch": self.epoch,
            "batch": self._progress.batch,
            "sessions": len(self.sessions.streaming),
            "instances": self.instances(),
            "streams": len(self.buffer.ledgers),
            "buffered_bytes": self.buffer.used,
            "budget_bytes": self.buffer.budget,
            "pressure": self.flow.pressure(self.buffer.used).name.lower(),
            "counts": dict(self.sessions.counts),
        }

    def validate(self) -> None:
        """Check what must always hold; every test fixture ends with it."""
        self.buffer.validate()
        clients = self.sessions.clients
        for client in clients.values():
            assert (client.phase is Phase.STREAMING) == (client.session in self.sessions.streaming), client
            assert client.phase is Phase.STREAMING or not (client.streams or client.open or client.asked), client
            assert (client.session in self.sessions.serving) == (client.phase in _SERVING), client
            assert client.open <= client.streams, client
            assert not client.to_ask, client
            for key in client.streams:
                assert self.buffer.ledgers[key].owner == client.session, (client, key)
        for instance, client in self.sessions.senders.items():
            assert client.session in self.sessions.streaming, client
            assert client.instance == instance, client
        for ledger in self.buffer.ledgers.values():
            assert ledger.owner is None or ledger.key in clients[ledger.owner].streams, ledger
            assert not ledger.empty or (ledger.owner is not None and not ledger.ended), ledger
            assert ledger.key.scope or ledger.key.stream_id in self.claims, ledger
