"""One member: the channel of a client that consumes a stream or works on a stage. Pure.

The member joins every partition that it consumes, under a name of its own there: ``<gateway>.<generation>.<number>``
and the partition behind another dot, so an instruction for it names the partition. Deliveries of all partitions are
numbered in the order in which they arrive, and at most ``concurrency`` of them are with the client. The others wait
here. Every message for the client leaves through :meth:`take`, in order. Source: ``docs/pipelines/gateway.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.errors import bounded_reason
from wallaroo_spark.gateway.cloud_events import events_of, to_wire
from wallaroo_spark.gateway.limits import ByteBudget, GatewayLimits, Refused, busy, ended, invalid, try_again
from wallaroo_spark.gateway.state.calls import Answer, RequestsInFlight, ToInbox, by_partition, reason_of
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.pipelines.controller.controller import LONGEST_DELAY
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.instructions import AnswerRequest, DeliverInputs, DeliverRecords
from wallaroo_spark.pipelines.controller.messages.values import Delivery, PartitionKey, ReplyTo, StreamOutput
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, EventProblem, Payload, valid_output
from wallaroo_spark.pipelines.schema.declarations import StartPoint, StreamDeclaration
from wallaroo_spark.pipelines.schema.names import stream_key

RENEWALS = 4
"""How often, within the time of a delivery, those that wait at a member that works are extended."""
EXACT = 100
"""The time of a delivery begins when the client is given it, to one part of so many: an event is not worth less."""
Outgoing = pb.SubscriberEvent | pb.WorkerEvent
MayPublish = Callable[[str], None]
"""Raises :class:`Refused` unless the client may publish to the stream of a path."""


@dataclass(frozen=True)
class GroupJoining:
    """The group that a member joins."""

    stream: str
    """Path of the stream."""
    group: str
    durable: bool
    """Whether the group outlives its members."""
    start: StartPoint
    """Where a new group begins."""
    max_records: int
    """The most events of a delivery."""
    concurrency: int
    """The most deliveries at once."""
    partitions: tuple[int, ...]
    """The partitions; none: all, also those that are added later."""
    known: int = 0
    """The number of partitions when it joins all; 0 when it joins some."""

    def event(self, reply: ReplyTo, member: str, added: bool) -> e.GroupJoined:
        """The event for one partition. A partition that was ``added`` later is read from its beginning."""
        start = StartPoint(location="beginning") if added else self.start
        return e.GroupJoined(reply, member, self.group, self.durable, start, self.max_records, self.known)


@dataclass(frozen=True)
class StageJoining:
    """The stage that a member joins."""

    stream: str
    """Path of the pipeline's input stream."""
    pipeline: str
    """Path of the pipeline."""
    stage: str
    concurrency: int
    """The most deliveries at once."""
    partitions: tuple[int, ...] = ()
    """None: all partitions."""
    otherwise: Refused | None = None
    """The refusal of a stage that the newest schema does not have, or runs in Spark, if no partition takes the member
    in: one with an instance that began with an older schema does. None for a stage that takes members."""

    def event(self, reply: ReplyTo, member: str, added: bool) -> e.StageJoined:
        """The event for one partition."""
        del added
        return e.StageJoined(reply, member, self.pipeline, self.stage, self.concurrency)


@dataclass(frozen=True)
class RecordsToGive:
    """A delivery of a group that is to be sent: its records are attached, or have to be read."""

    number: int
    """Number of the delivery in this channel."""
    partition: int
    delivery: DeliverRecords
    """The instruction of the controller."""
    records: tuple[CloudEvent, ...] | None
    """The records; None: read them from the table."""


class _State(StrEnum):
    WAITING = "waiting"
    GIVEN = "given"
    TAKEN = "taken away"
    ENDING = "ending"


@dataclass
class _Statement:
    """A statement of a transaction, whose parts are of different partitions."""

    stream: str
    """Path of the stream."""
    places: list[pb.Place]
    """Where each of its events is, once they are written."""
    waiting: int
    """Parts that no controller has answered yet."""
    rejected: bool = False
    """Whether a part was refused."""
    reason: str = ""
    """Why events of it were not written although its transaction is committed."""


@dataclass
class _Open:
    """A delivery that this member has."""

    number: int
    """Its number in this channel."""
    partition: int
    instruction: DeliverRecords | DeliverInputs
    """The instruction of the controller."""
    records: tuple[CloudEvent, ...] | None
    """The attached records, until they are given."""
    size: int
    """The bytes that it holds in memory while it waits."""
    state: _State = _State.WAITING
    """Its state in this channel."""
    given: bool = False
    """Whether the client has been given it."""
    waited: bool = False
    """Whether it had to wait for a place: its time begins when the client is given it."""
    since: float = 0.0
    """The last look before it came, from which on it may have waited."""
    begun: bool = False
    """Whether the client has begun a transaction."""
    parts: list[tuple[_Statement, list[int]]] = field(default_factory=list)
    """Each part of a statement, with the places of its events in it, in the order in which the controller has them."""
    statements: list[_Statement] = field(default_factory=list)
    """The statements of its transaction."""
    statement_bytes: int = 0
    """The bytes of their events."""

    @property
    def delivery(self) -> Delivery:
        return self.instruction.delivery


@dataclass(eq=False, repr=False)
class JoinedMember:
    """One channel. ``changed`` is called when :meth:`take` may have something, or :attr:`ended` is set."""

    number: int
    joining: GroupJoining | StageJoining
    requests: RequestsInFlight
    limits: GatewayLimits
    changed: Callable[[], None]
    budget: ByteBudget
    """The bytes that wait for all members, which those of this one are a part of."""
    ended: Refused | None = field(default=None, init=False)
    """Why the channel ends; None while it lives."""
    name: str = field(init=False)
    """Name of the member, for people."""
    _joined: set[int] = field(default_factory=set, init=False)
    _joining: set[int] = field(default_factory=set, init=False)
    _announced: bool = field(default=False, init=False)
    _otherwise: Refused | None = field(init=False)
    _finishing: bool = field(default=False, init=False)
    _asked: dict[int, Callable[[Answer], None]] = field(default_factory=dict, init=False)
    """What follows from the answer to each request."""
    _settling: int = field(default=0, init=False)
    """Number of acks and nacks without an answer."""
    _open: dict[int, _Open] = field(default_factory=dict, init=False)
    _by_delivery: dict[tuple[int, Delivery], _Open] = field(default_factory=dict, init=False)
    _waiting: dict[int, _Open] = field(default_factory=dict, init=False)
    """Those that the client has not been given, and that were not withdrawn, by their numbers."""
    _waiting_bytes: int = field(default=0, init=False)
    _given: int = field(default=0, init=False)
    _last: int = field(default=0, init=False)
    _looked: float = field(default=0.0, init=False)
    """When :meth:`take` was called last."""
    _renewed: float = field(default=0.0, init=False)
    _shortest: int = field(default=0, init=False)
    """The shortest time of a delivery that had to wait, in milliseconds; 0: none has a limit."""
    _events: list[ToInbox] = field(default_factory=list, init=False)
    _out: deque[Outgoing] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.requests.gateway}.{self.requests.generation}.{self.number}"
        self._otherwise = self.joining.otherwise if isinstance(self.joining, StageJoining) else None

    @property
    def full(self) -> bool:
        """Whether the replies that wait for the client have reached their limit, so that it is not read."""
        return len(self._out) >= self.limits.replies

    @property
    def open_deliveries(self) -> int:
        """Number of deliveries that are not settled."""
        return len(self._open)

    @property
    def oldest_open(self) -> int | None:
        """Number of the oldest of these deliveries; None without one."""
        return next(iter(self._open), None)

    def name_at(self, partition: int) -> str:
        """Name of the member in one partition."""
        return f"{self.name}.{partition}"

    def join(self, partitions: Iterable[int], *, added: bool = False) -> list[ToInbox]:
        """Join partitions, unless the member is there already."""
        events: list[ToInbox] = []
        for partition in partitions:
            if partition in self._joined or partition in self._joining or self.ended is not None:
                continue
            self._joining.add(partition)
            reply = self._ask(partial(self._join_answered, partition, added))
            event = self.joining.event(reply, self.name_at(partition), added)
            events.append((self._key(partition), event))
        return events

    @property
    def finished(self) -> bool:
        """Whether the client sends nothing more, and has every answer to its acks and nacks."""
        return self._finishing and not self._settling

    def finish(self) -> None:
        """The client sends nothing more: it is given no further delivery."""
        self._finishing = True

    def leave(self) -> list[ToInbox]:
        """The channel has ended: the member leaves every partition."""
        self.ended = self.ended or ended("the channel is closed")
        for request in self._asked:
            self.requests.forget(request)
        self._waits(-self._waiting_bytes)
        left = sorted(self._joined | self._joining)
        self._joined.clear()
        self._joining.clear()
        return [(self._key(partition), e.MemberLeft(self.name_at(partition))) for partition in left]

    def end(self, problem: Refused) -> None:
        """End the channel with an error; the caller lets the member leave."""
        self.ended = self.ended or problem
        self.changed()

    def lose(self, partition: int, problem: Refused) -> None:
        """A controller has ended the subscription. That of a stage may go on in partitions whose instances need it."""
        self._joined.discard(partition)
        self._joining.discard(partition)
        self._otherwise = problem
        if isinstance(self.joining, GroupJoining) or not (self._joined or self._joining):
            self.end(problem)

    def client(
        self, message: pb.SubscriberMessage | pb.WorkerMessage, schema: SchemaView, may: MayPublish
    ) -> list[ToInbox]:
        """Take a message of the client. Raises :class:`Refused` when the channel has to end because of it."""
        kind = message.WhichOneof("message")
        if kind is None or kind == "join":
            problem = "the channel has joined already; open another channel" if kind else "a message has no content"
            raise invalid(
                f"{problem}; the first message is join, and the others are ack, nack, extend, begin or statement"
            )
        number = getattr(message, kind).delivery
        found = self._open.get(number)
        if found is not None and found.state is _State.TAKEN and found.given and kind in ("ack", "nack"):
            # The controller drops it, and its answer says why; the place is free again.
            return self._nack(found, 0, "")
        if found is None or found.state is not _State.GIVEN:
            self._warn(number, f"delivery {number} is not open: {self._why_not_open(number)}; the {kind} is dropped")
            return []
        try:
            match kind:
                case "ack":
                    return self._ack(found, message.ack, schema)
                case "nack":
                    return self._nack(found, min(message.nack.delay, LONGEST_DELAY), message.nack.reason)
                case "extend":
                    return [self._about(one, e.DeliveryExtended) for one in (found, *self._waiting_deliveries())]
                case "begin":
                    return self._begin(found)
                case _:
                    return self._add_statement(found, message.statement.events, schema, may)
        except Refused as problem:
            # The delivery ends as nacked; the answer to the nack has the reason.
            if kind == "statement":
                self._send(statement=self._result(found.number, len(found.statements), "REJECTED", problem.message))
            return self._nack(found, 0, problem.message, pb.Problem(code=problem.code, text=problem.message))

    def nack_reason(self, message: pb.SubscriberMessage | pb.WorkerMessage) -> str:
        """The text for the log, of a message that gives a delivery back with a reason; empty for any other."""
        nack = message.nack
        found = self._open.get(nack.delivery) if nack.reason else None
        if found is None or found.state is not _State.GIVEN:
            return ""
        return f"member {self.name_at(found.partition)} gives {found.delivery} back: {bounded_reason(nack.reason)}"

    def answered(self, answer: Answer) -> None:
        """Take the answer of a controller to a request of this member."""
        self._asked.pop(answer.reply_to.request)(answer)

    def deliver(
        self, partition: int, instruction: DeliverRecords | DeliverInputs, records: tuple[CloudEvent, ...] | None
    ) -> None:
        """Take a delivery of a controller."""
        self._last += 1
        if isinstance(instruction, DeliverRecords):
            size = sum(record.size for record in records or ())
            if self._waiting_bytes + size > self.limits.waiting_bytes or not self.budget.has_room(size):
                records, size = None, 0
        else:
            size = sum(len(output.data) for _, output in instruction.outputs)
            size += instruction.root.size if instruction.root is not None else 0
            if problem := self._no_room(size):
                self.end(busy(problem))
                return
        found = _Open(self._last, partition, instruction, records, size)
        found.waited = bool(self._waiting) or self._given >= self.joining.concurrency
        found.since = self._looked
        if found.waited and instruction.timeout:
            self._shortest = min(self._shortest or instruction.timeout, instruction.timeout)
        self._open[found.number] = self._waiting[found.number] = found
        self._by_delivery[partition, found.delivery] = found
        self._waits(size)
        self.changed()

    def _no_room(self, size: int) -> str:
        """Why a delivery of a stage cannot wait here, with the remedy; empty when it can."""
        limit = self.limits.waiting_bytes
        if self._waiting and self._waiting_bytes + size > limit:
            return (
                f"more than {limit} bytes of deliveries wait for this member; read and ack them faster, or join with a "
                "lower concurrency"
            )
        if not self.budget.has_room(size):
            return (
                f"{self.budget.used} bytes of deliveries wait for the members of this gateway, which is the limit; "
                "join again later, or at another gateway"
            )
        return ""

    def withdraw(self, partition: int, delivery: Delivery, reason: str, taken_away: bool = False) -> None:
        """A delivery has ended without the member's doing. One that was taken away keeps its place."""
        found = self._by_delivery.get((partition, delivery))
        if found is None or found.state is _State.ENDING:
            # The answer to an ack that is on its way says it.
            return
        if not taken_away:
            self._withdraw(found, reason)
            return
        if not found.given:
            self._waits(-found.size)
            found.records, found.size = None, 0
        else:
            self._send(withdrawn=pb.Withdrawn(delivery=found.number, reason=reason, taken_away=True))
        found.state = _State.TAKEN

    def take_events(self) -> list[ToInbox]:
        """The events that :meth:`take` has caused."""
        events, self._events = self._events, []
        return events

    def take(self, now: float = 0.0) -> Outgoing | RecordsToGive | None:
        """The next message for the client, or the delivery whose records are to be sent; None when there is none.

        ``now`` is any clock in seconds.
        """
        self._looked = now
        if self._out:
            return self._out.popleft()
        while self._announced and not self._finishing and self._waiting and self._given < self.joining.concurrency:
            found = self._waiting.pop(next(iter(self._waiting)))
            if found.state is _State.TAKEN:
                # Its time was over before the client was given it. The controller gives the member another one.
                self._given += 1
                self._events += self._nack(found, 0, "")
                continue
            found.state, found.given = _State.GIVEN, True
            self._given += 1
            timeout = found.instruction.timeout
            if found.waited and timeout and EXACT * 1000 * (now - found.since) >= timeout:
                self._events.append(self._about(found, e.DeliveryExtended))
            self._renew(now)
            self._waits(-found.size)
            records, found.records, found.size = found.records, None, 0
            instruction = found.instruction
            if isinstance(instruction, DeliverRecords):
                return RecordsToGive(found.number, found.partition, instruction, records)
            return _stage_event(found.number, found.partition, instruction)
        return None

    def _about(self, found: _Open, event: Callable[..., e.Event], *more: object) -> ToInbox:
        """An event about a delivery, for the controller that has it."""
        return self._key(found.partition), event(self.name_at(found.partition), found.delivery, *more)

    def _waiting_deliveries(self) -> list[_Open]:
        return [one for one in self._waiting.values() if one.state is _State.WAITING and one.instruction.timeout]

    def _renew(self, now: float) -> None:
        """The time of a delivery must not pass while it waits for its turn at a member that works."""
        if self._shortest and now >= self._renewed + self._shortest / 1000 / RENEWALS:
            self._renewed = now
            self._events += [self._about(one, e.DeliveryExtended) for one in self._waiting_deliveries()]

    def _waits(self, size: int) -> None:
        self._waiting_bytes += size
        self.budget.add(size)

    def _key(self, partition: int) -> PartitionKey:
        return PartitionKey(self.joining.stream, partition)

    def _ask(self, then: Callable[[Answer], None]) -> ReplyTo:
        reply = self.requests.open(self)
        self._asked[reply.request] = then
        return reply

    def _send(self, **event: object) -> None:
        make: Any = pb.SubscriberEvent if isinstance(self.joining, GroupJoining) else pb.WorkerEvent
        self._out.append(make(**event))
        self.changed()

    def _warn(self, number: int, text: str) -> None:
        self._send(warning=pb.Warning(delivery=number, text=text))

    def _result(self, number: int, place: int, state: str, reason: str = "") -> pb.StatementResult:
        return pb.StatementResult(delivery=number, place=place, state=state, reason=reason)

    def _join_answered(self, partition: int, added: bool, answer: Answer) -> None:
        reason, problem = reason_of(answer), Refused(reason_of(answer), code="join-refused")
        self._joining.discard(partition)
        if isinstance(answer, AnswerRequest):
            self._joined.add(partition)
        elif isinstance(self.joining, GroupJoining):
            if added:
                text = f"partition {partition} of {self.joining.stream} was added, and cannot be joined: {reason}"
                problem = try_again(f"{text}; join again")
            self.end(problem)
            return
        # A stage that the schema has no more is joined in the partitions whose instances still need it.
        if not self._joining and not self._joined:
            self.end(self._otherwise or problem)
        elif not self._joining and not self._announced:
            self._announced = True
            self._send(joined=pb.Joined(member=self.name))

    def _ack(self, found: _Open, ack: pb.Ack, schema: SchemaView) -> list[ToInbox]:
        output, outputs = None, tuple[StreamOutput, ...]()
        if isinstance(self.joining, StageJoining):
            if ack.HasField("output"):
                output = Payload(ack.output.data, ack.output.content_type)
                try:
                    valid_output(output, self.limits.event_bytes)
                except EventProblem as problem:
                    raise invalid(f"the output {problem}") from None
            outputs = tuple(self._stream_outputs(ack.stream_outputs, schema))
        elif ack.HasField("output") or ack.stream_outputs:
            raise invalid("an ack of a group's delivery has no output; only those of stages have")
        return [self._about(found, partial(e.DeliveryAcked, self._settle(found)), output, outputs)]

    def _stream_outputs(self, given: Sequence[pb.StreamEvents], schema: SchemaView) -> Iterator[StreamOutput]:
        assert isinstance(self.joining, StageJoining)
        namespace = self.joining.pipeline.rpartition("/")[0]
        if sum(len(one.events) for one in given) > self.limits.events or len(given) > self.limits.events:
            raise invalid(f"an ack has at most {self.limits.events} events for streams; divide the work")
        for one in given:
            path = stream_key(one.stream, namespace).path
            events = events_of(one.events, self.limits)
            # The controller refuses a stream that the stage does not declare.
            partitions = max(1, schema.partitions(path))
            if not events:
                yield StreamOutput(PartitionKey(path, 0), ())
                continue
            chosen = one.partition if one.HasField("partition") else None
            for key, places in by_partition(path, partitions, events, chosen):
                yield StreamOutput(key, tuple(events[place] for place in places))

    def _why_not_open(self, number: int) -> str:
        found = self._open.get(number)
        if found is not None and found.state is _State.ENDING:
            return "it was acked or nacked already"
        was_given = found is None and 0 < number <= self._last
        return "it was settled or withdrawn" if was_given else "it was never given on this channel"

    def _nack(self, found: _Open, delay: int, reason: str, problem: pb.Problem | None = None) -> list[ToInbox]:
        nacked = partial(e.DeliveryNacked, self._settle(found, problem))
        return [self._about(found, nacked, delay, bounded_reason(reason))]

    def _settle(self, found: _Open, problem: pb.Problem | None = None) -> ReplyTo:
        found.state = _State.ENDING
        self._given -= 1
        self.changed()
        self._settling += 1
        return self._ask(partial(self._settled, found, problem))

    def _begin(self, found: _Open) -> list[ToInbox]:
        if found.begun:
            self._warn(found.number, f"delivery {found.number} has a transaction already; the begin is dropped")
            return []
        found.begun = True
        self._send(statement=self._result(found.number, -1, "PENDING"))
        return [self._about(found, partial(e.TransactionBegun, self._ask(partial(self._begun, found))))]

    def _add_statement(
        self, found: _Open, given: pb.StreamEvents, schema: SchemaView, may: MayPublish
    ) -> list[ToInbox]:
        if not found.begun:
            self._warn(found.number, f"delivery {found.number} has no transaction; begin one; the statement is dropped")
            return []
        if len(found.parts) >= self.limits.events:
            raise invalid(f"a transaction has at most {self.limits.events} statements; divide it")
        may(given.stream)
        stream = schema.find(StreamDeclaration, given.stream)
        events = events_of(given.events, self.limits)
        if not events:
            raise invalid("a statement has no event; give at least one")
        found.statement_bytes += sum(one.size for one in events)
        if found.statement_bytes > self.limits.transaction_bytes:
            raise invalid(
                f"the statements of the transaction have {found.statement_bytes} bytes, and "
                f"{self.limits.transaction_bytes} are permitted, because they are written together; divide it"
            )
        if sum(len(one.places) for one in found.statements) + len(events) > self.limits.transaction_events:
            raise invalid(f"a transaction has at most {self.limits.transaction_events} events; divide it")
        chosen = given.partition if given.HasField("partition") else None
        parts = by_partition(stream.key.path, stream.partitions, events, chosen)
        place = len(found.statements)
        statement = _Statement(stream.key.path, [pb.Place()] * len(events), len(parts))
        found.statements.append(statement)
        self._send(statement=self._result(found.number, place, "PENDING"))
        sent: list[ToInbox] = []
        for key, places in parts:
            found.parts.append((statement, places))
            added = partial(e.StatementAdded, self._ask(partial(self._statement_answered, found, place)))
            sent.append(self._about(found, added, key, tuple(events[one] for one in places)))
        return sent

    def _begun(self, found: _Open, answer: Answer) -> None:
        if found.number not in self._open:
            return
        if isinstance(answer, AnswerRequest):
            self._send(statement=self._result(found.number, -1, "APPLIED"))
        else:
            self._warn(found.number, reason_of(answer))

    def _statement_answered(self, found: _Open, place: int, answer: Answer) -> None:
        if found.number not in self._open:
            return
        statement = found.statements[place]
        if isinstance(answer, AnswerRequest):
            statement.waiting -= 1
            if not statement.waiting and not statement.rejected:
                self._send(statement=self._result(found.number, place, "APPLIED"))
            return
        reason = reason_of(answer)
        if not statement.rejected:
            statement.rejected = True
            self._send(statement=self._result(found.number, place, "REJECTED", reason))
        if found.state is _State.GIVEN:
            self._withdraw(found, f"statement {place} was rejected, and the delivery is nacked: {reason}")

    def _settled(self, found: _Open, problem: pb.Problem | None, answer: Answer) -> None:
        self._settling -= 1
        if found.number not in self._open:
            return
        self._forget(found)
        written = list[pb.Written]()
        if isinstance(answer, AnswerRequest):
            written = _written(found, answer)
            for place, one in enumerate(written):
                self._send(statement=self._result(found.number, place, "COMMITTED", one.reason))
        elif problem is None:
            dropped = "delivery-not-open" if not hasattr(answer, "reason") else "ack-refused"
            problem = pb.Problem(code=dropped, text=reason_of(answer))
        self._send(settled=pb.Settled(delivery=found.number, written=written, problem=problem))

    def _withdraw(self, found: _Open, reason: str) -> None:
        self._forget(found)
        if found.state is _State.GIVEN:
            self._given -= 1
            self._send(withdrawn=pb.Withdrawn(delivery=found.number, reason=reason))
        else:
            self._waits(-found.size)

    def _forget(self, found: _Open) -> None:
        del self._open[found.number]
        self._by_delivery.pop((found.partition, found.delivery), None)
        self._waiting.pop(found.number, None)


def group_messages(
    given: RecordsToGive, first: int, records: Sequence[CloudEvent], limits: GatewayLimits, *, more: bool = False
) -> Iterator[pb.SubscriberEvent]:
    """The messages of a delivery, each of about ``part_bytes``. ``first`` is the offset of the first record.

    It is greater than that of the delivery when retention has removed records meanwhile. ``more``: these are not the
    last records of the delivery.
    """
    number, partition, asked = given.number, given.partition, given.delivery
    missed = asked.missed + max(0, min(first, asked.last + 1) - asked.first)
    part = pb.GroupDelivery(delivery=number, partition=partition, first=first, missed=missed, timeout=asked.timeout)
    size = 0
    for place, record in enumerate(records):
        event = to_wire(record)
        if part.events and size + event.ByteSize() > limits.part_bytes:
            part.more = True
            yield pb.SubscriberEvent(delivery=part)
            part = pb.GroupDelivery(delivery=number, partition=partition, first=first + place)
            size = 0
        size += event.ByteSize()
        part.events.append(event)
    part.more = more
    yield pb.SubscriberEvent(delivery=part)


def _stage_event(number: int, partition: int, given: DeliverInputs) -> pb.WorkerEvent:
    outputs = {name: pb.Payload(data=one.data, content_type=one.content_type) for name, one in given.outputs}
    of = given.delivery
    sent = pb.StageDelivery(delivery=number, instance=of.instance, partition=partition, outputs=outputs, birth=of.birth)
    sent.timeout = given.timeout
    if given.root is not None:
        sent.root_event.CopyFrom(to_wire(given.root))
    return pb.WorkerEvent(delivery=sent)


def _written(found: _Open, answer: AnswerRequest) -> list[pb.Written]:
    """Where the events of each statement were written."""
    if not answer.written:
        return []
    for (statement, places), written in zip(found.parts, answer.written, strict=False):
        statement.reason = written.reason or statement.reason
        for place, (partition, offset) in zip(places, written.places(), strict=False):
            statement.places[place] = pb.Place(partition=partition, offset=offset)
    return [pb.Written(stream=one.stream, places=one.places, reason=one.reason) for one in found.statements]
