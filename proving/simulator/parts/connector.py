"""A connector: the program that owns the data permanently, and the process that sends it and may die.

The decisions are the product's own: where a stream resumes and how often it is announced (``StreamReferences``), when
a refused NOTIFY is sent again (``Refusals``), what is sent next, what is sent again and which ids follow
(``ResendBuffer``, ``SourcePosition``, ``EphemeralMessages`` and their ``Due``), which address is next
and after which delay (``AddressRotation``), what the end of a session means (``report_ending``), and what the session
table allows (``ConnectorSession``).

This file is the shell over simulated time and connections. It takes the place of these parts of the product, which
consist of awaiting: the attempts and the handshake of ``SessionKeeper``, the dispatch of frames and the timers of
``OpenStreams``, and the turns of ``StreamSender`` and ``SourceFeed``. Here chance decides how much of which stream is
sent in a turn, in place of ``FairQueue``. Two things differ on purpose: a connector that the worker refuses for lack of
memory goes on, as after an operator has started it again, and no limit ends the attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proving.simulator.engine.core import Part, Promise, Steps, Violation
from proving.simulator.engine.network import End
from proving.simulator.parts.sources import Source
from proving.simulator.parts.surroundings import Surroundings
from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.connector.sending.resend_buffer import MemoryBudget, ResendBuffer, memory_cost
from wallaroo_spark.connector.sending.stream_references import Refusals, StreamReferences, acknowledge
from wallaroo_spark.connector.sending.unacknowledged import (
    Due,
    EphemeralMessages,
    SourcePosition,
    UnacknowledgedMessages,
)
from wallaroo_spark.connector.session_keeper import report_ending
from wallaroo_spark.connector.worker_connection import AddressRotation
from wallaroo_spark.errors import RegistryError, RemoteProtocolError, ReplayError, TransportError
from wallaroo_spark.protocol import (
    HEAD_BYTES,
    NOTHING_PROCESSED,
    Ack,
    ConnectorSession,
    EncodedRun,
    Error,
    Frame,
    Nack,
    NotifyAck,
    Ok,
    Restart,
    Revision,
    WorkerSession,
    encode_run,
)
from wallaroo_spark.references import StreamKey
from wallaroo_spark.transport import format_address, parse_address

RETRY = Backoff(initial=0.2, maximum=3.0, give_up_after=1e9)
HANDSHAKE_SECONDS = 10.0
_TOO_LARGE = "memoryBudget"


@dataclass
class Sending:
    """The state of one stream in a process."""

    source: Source
    """The stream's messages."""
    messages: UnacknowledgedMessages
    """The messages that were sent and are not acknowledged."""
    cursor: int = 0
    """The index in the source of the next message that this process has never sent."""
    opened: bool = False
    """Whether a worker has ever answered this process with the stream's reference."""
    refusals: Refusals = field(init=False)
    """NOTIFYs that the worker has refused in a row."""

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.source.name, self.source.stream_id, RETRY)


@dataclass
class Program:
    """The part of a connector that outlives its process: its identity and its data."""

    world: Surroundings
    """The history that the program belongs to."""
    instance: str
    revision: Revision
    """The protocol revision that it speaks."""
    replayable: bool
    """Whether it can send acknowledged messages again."""
    sources: list[Source] = field(default_factory=list)
    """Its streams."""
    process: Connector | None = None
    """Its running process; None while it does not run."""

    def start(self) -> None:
        """Start its process unless one runs."""
        if self.process is None or not self.process.alive:
            self.process = Connector(self)

    def kill(self) -> None:
        """Kill its process."""
        if self.process is not None and self.process.alive:
            self.process.kill()


class Connector(Part):
    """One process of a program."""

    def __init__(self, program: Program) -> None:
        world = program.world
        super().__init__(f"{program.instance}#{world.next_number()}")
        self.program = program
        self.world = world
        self.sim = world.sim
        self.revision = program.revision
        self.budget = MemoryBudget(1 << 30)
        self.increasing = world.profile.message_ids != "opaque" or not program.revision.layout.known_flags
        self.streams = {source.stream_id: self._sending(source) for source in program.sources}
        self.session: ConnectorSession | None = None
        self.end: End | None = None
        self.up = False
        self.notified = 0
        self._references = StreamReferences()
        self._ending = Promise()
        self._progressed = False
        self._poked = False
        self.sim.log(self.name, f"starts in {self.revision.name}")
        self.sim.spawn(self, self._run())

    def _sending(self, source: Source) -> Sending:
        messages: UnacknowledgedMessages
        if source.ephemeral:
            messages = EphemeralMessages(source.name, increasing=False)
        elif self.program.replayable:
            messages = SourcePosition(source.name, increasing=self.increasing)
        else:
            messages = ResendBuffer(source.name, self.budget, increasing=self.increasing)
        return Sending(source, messages, source.spent)

    def kill(self) -> None:
        """End this process at once."""
        self.alive = False
        self.sim.log(self.name, "is killed")
        self.world.network.kill(self)

    def key(self, stream_id: int) -> StreamKey:
        """The identity of one of its streams."""
        return StreamKey(self.program.instance if self.revision.stream_scope == "instance" else "", stream_id)

    def worker_session(self) -> WorkerSession | None:
        """The worker's side of its session; None after its end."""
        return self.end.peer.taker.session_of(self.end.peer) if self.end and self.end.peer.taker else None

    # Sessions, as the session keeper handles them.

    def _run(self) -> Steps:
        rotation = AddressRotation(RETRY, self.sim.random.random, self.sim.now)
        while True:
            yield rotation.delay(self.sim.now)
            try:
                leases = yield self.world.registry.ask(lambda r: r.leases())
            except RegistryError as error:
                rotation.failed("the registry", str(error))
                continue
            found = [parse_address(lease.connect) for lease in leases.values() if lease.connect]
            rotation.replace(found)
            address = rotation.next()
            if address is None:
                rotation.failed("the registry", "no worker")
                continue
            where = format_address(*address)
            try:
                end = yield self.world.network.connect(self, where)
            except TransportError as error:
                rotation.failed(where, error.message)
                continue
            began, last = yield from self._session(end, rotation)
            if isinstance(last, ReplayError):
                if not rotation.behind(address, last.message, self.sim.now):
                    raise Violation(f"{self.name} is asked for what was acknowledged: {last.message}") from last
                continue
            try:
                report_ending(rotation, address, last, self.sim.now, began=began, progressed=self._progressed)
            except RemoteProtocolError as error:
                # Such an error ends a connector of the product. An operator starts it again where memory was the
                # reason.
                if _TOO_LARGE not in error.message:
                    raise Violation(f"{self.name} kept the rules and was refused: {error.message}") from error
                self.sim.history.counts["dismissed"] += 1
                rotation.failed(where, error.message)

    def _session(self, end: End, rotation: AddressRotation) -> Steps:
        session = ConnectorSession(self.revision)
        self.session, self.end, self._ending, self._progressed = session, end, Promise(), False
        ending, self.notified = self._ending, 0
        end.taker = self
        cookie = self.world.cookie.encode()
        end.write(session.hello(version="0.0.1", cookie=cookie, program="sim", instance=self.program.instance))
        late = TransportError("no answer to HELLO")
        self.sim.after(HANDSHAKE_SECONDS, self, lambda: None if self.up else ending.resolve(late))
        began_at = self.sim.now
        last = yield ending
        began = began_at if self.up else None
        if self.up:
            rotation.connected()
        self.up, self.session, self.end = False, None, None
        end.close()
        self.sim.log(self.name, f"its session has ended: {last}"[:150])
        return began, last

    def restart_session(self) -> None:
        """End the session and connect again."""
        self._ending.resolve(TransportError("its session is ended"))

    def take(self, end: End, data: bytes) -> None:
        """Bytes from the worker."""
        session = self.session
        if session is None or end is not self.end or self._ending.settled:
            return
        session.receive(data)
        try:
            while (frame := session.next_event()) is not None:
                self._take(session, frame)
        except RemoteProtocolError as error:
            raise Violation(f"{self.name}: the worker broke the protocol: {error.message}") from error
        except ReplayError as error:
            self._ending.resolve(error)
        self.world.judge.heard(self)
        self.poke()

    def session_of(self, end: End) -> None:
        """None: only a worker's side has it."""

    def gone(self, end: End, reason: str) -> None:
        """The connection has ended."""
        if end is self.end:
            self._ending.resolve(TransportError(reason or "closed"))

    # Frames, as the hub handles them.

    def _take(self, session: ConnectorSession, frame: Frame) -> None:
        match frame:
            case Restart() | Error():
                self._ending.resolve(frame)
            case Ok():
                self._begin(session, frame)
            case Ack():
                for stream_id, ref in frame.refs:
                    self._acknowledge(session, stream_id, ref)
            case Nack():
                self._rewind(session, frame)
            case NotifyAck():
                self._answer(session, frame)

    def _begin(self, session: ConnectorSession, ok: Ok) -> None:
        self.up = True
        self.sim.log(self.name, f"is told OK, {ok.credits} credits, {[(s.stream_id, s.ref) for s in ok.streams]}")
        for stream in ok.streams:
            self.world.judge.acknowledged(self, stream.stream_id, stream.ref, "OK")
        self._references.began(self.revision, ok)
        for sending in self.streams.values():
            sending.refusals.clear()
            if not sending.messages.settled:
                self._announce(session, sending)

    def _announce(self, session: ConnectorSession, sending: Sending) -> None:
        stream_id, frames, before = sending.source.stream_id, list[bytes](), session.credits.spent

        def notify(reference: int) -> None:
            frames.append(session.notify(stream_id, sending.source.name, reference))

        is_open = self._references.announce(session, stream_id, sending.messages, notify)
        self.notified += session.credits.spent - before
        if self.end is not None:
            self.end.write(b"".join(frames))
        if is_open:
            self._resume(sending)

    def _resume(self, sending: Sending) -> None:
        reference = self._references.get(sending.source.stream_id)
        sending.messages.resume(reference)
        if not sending.opened:
            sending.opened = True
            sending.cursor = sending.cursor if sending.source.ephemeral else sending.source.after(reference)

    def _acknowledge(self, session: ConnectorSession, stream_id: int, ref: int) -> None:
        self.world.judge.acknowledged(self, stream_id, ref, "ACK")
        self._progressed = True
        self._references.acknowledged(stream_id, ref)
        sending = self.streams.get(stream_id)
        if sending is not None and sending.opened:
            acknowledge(session, stream_id, sending.messages, ref)

    def _rewind(self, session: ConnectorSession, nack: Nack) -> None:
        self.sim.log(self.name, f"must send {nack.stream_id} again behind {nack.ref}")
        if nack.ref:
            self.world.judge.acknowledged(self, nack.stream_id, nack.ref, "NACK")
        self._references.rewound(nack)
        sending = self.streams.get(nack.stream_id)
        if sending is not None:
            self._announce(session, sending)

    def _answer(self, session: ConnectorSession, answer: NotifyAck) -> None:
        if answer.ref != NOTHING_PROCESSED:
            self.world.judge.acknowledged(self, answer.stream_id, answer.ref, "NOTIFY_ACK")
        self._references.answered(answer)
        sending = self.streams.get(answer.stream_id)
        if sending is None:
            return
        if answer.success:
            sending.refusals.clear()
            self._resume(sending)
            return
        self.sim.after(sending.refusals.refused(self.sim.now), self, lambda: self._announce_again(session, sending))

    def _announce_again(self, session: ConnectorSession, sending: Sending) -> None:
        known = self.streams.get(sending.source.stream_id) is sending
        if self.session is session and self.up and not self._ending.settled and known:
            self._announce(session, sending)

    # Sending, as streams and feeds do it.

    def poke(self) -> None:
        """Have messages sent soon, as many as credits allow."""
        if not self._poked and self.alive:
            self._poked = True
            self.sim.after(self.sim.latency() * 0.3, self, self._pump)

    def _pump(self) -> None:
        self._poked = False
        session, end = self.session, self.end
        if session is None or end is None or not self.up or self._ending.settled:
            return
        frames: list[bytes] = []
        most = self.sim.random.choice((1, 5, 20, 100))
        order = list(self.streams.values())
        self.sim.random.shuffle(order)
        more = False
        for sending in order:
            left = most
            while left and (found := self._next_frames(session, sending, left)) is not None:
                frames.append(found[0])
                left -= found[1]
            more = more or not left
        end.write(b"".join(frames))
        self.world.judge.heard(self)
        if more:
            self.poke()

    def _next_frames(self, session: ConnectorSession, sending: Sending, most: int) -> tuple[bytes, int] | None:
        """The next frames and their number, at most ``most``."""
        messages, source = sending.messages, sending.source
        if not sending.opened or not session.is_open(source.stream_id):
            return None
        if messages.due is Due.REWIND and isinstance(messages, SourcePosition):
            sending.cursor = source.after(messages.take_rewind())
        credits = session.credits.available
        most = self.sim.random.choice((1, min(most, max(1, credits))))
        if messages.due is Due.RESEND and isinstance(messages, ResendBuffer):
            run = messages.next_resend(most)
            if credits < 1 or run is None:
                return None
            data = session.messages(run)
            messages.resent()
            messages.validate()
            return data, run.count
        if sending.cursor < source.produced and messages.due is Due.NEW:
            return self._new_frames(session, sending, most) if credits >= 1 else None
        if source.ends and source.complete and sending.cursor == len(source.ids):
            messages.ended = True
        if messages.due is Due.END and (credits >= 1 or not session.end_costs_credit):
            return self._end_frame(session, sending), 1
        return None

    def _new_frames(self, session: ConnectorSession, sending: Sending, most: int) -> tuple[bytes, int] | None:
        """Frames that were never sent: one message, or a run of messages with the same flags."""
        messages, source, at = sending.messages, sending.source, sending.cursor
        end = at + 1
        while end < min(source.produced, at + most) and source.flags[end] == source.flags[at]:
            end += 1
        payloads = [source.payload(place) or b"" for place in range(at, end)]
        if not self.budget.admits(memory_cost(sum(map(len, payloads)) + HEAD_BYTES * len(payloads), len(payloads))):
            return None
        ids = messages.next_ids(source.ids[at:end], end - at)
        if end - at == 1:
            data = session.message(source.message(at))
            run = EncodedRun(self.revision, source.stream_id, ids, data)
        else:
            run = encode_run(self.revision, source.stream_id, ids, payloads, source.flags[at])
            data = session.messages(run)
        messages.append(run)
        messages.validate()
        sending.cursor = end
        source.spent += source.ephemeral * (end - at)
        return data, end - at

    def _end_frame(self, session: ConnectorSession, sending: Sending) -> bytes:
        messages, stream_id = sending.messages, sending.source.stream_id
        data = session.end_of_stream(stream_id, messages.last or 0, ephemeral=messages.ephemeral)
        messages.end_written = True
        return data

    def drop(self, stream_id: int) -> None:
        """Give up a stream that moves to another instance."""
        self.streams.pop(stream_id, None)
        self.restart_session()

    def adopt(self, source: Source) -> None:
        """Take over a stream from another instance."""
        sending = self.streams[source.stream_id] = self._sending(source)
        if self.session is not None and self.up and not self._ending.settled:
            self._announce(self.session, sending)

    @property
    def content(self) -> bool:
        """Whether every message that needs an acknowledgement has one."""
        return all(
            sending.source.ephemeral
            or (
                sending.messages.reference == sending.source.ids[-1]
                and (
                    not sending.source.ends
                    or sending.messages.settled
                    or (sending.messages.begun_anew and sending.messages.done)
                )
            )
            for sending in self.streams.values()
        )
