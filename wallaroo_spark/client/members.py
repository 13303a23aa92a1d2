"""Members of groups and of stages: their connections and their deliveries.

The connection of a member: of a group (``Subscribe``) or of a stage (``Work``), from its join to its end.

Deliveries as programs have them: their events or inputs, their ack or nack, and their transaction.

A member that joins again, with another gateway too, whenever its connection is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Self, TypeVar

import grpc

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.arguments import events_of, milliseconds_of, partition_of_call, path_of
from wallaroo_spark.client.events import Event, decode_value, encode_value
from wallaroo_spark.client.gateways import Attempts, GatewayConnection, Gateways
from wallaroo_spark.client.refusals import is_cancelled_itself, refusal, within_limit
from wallaroo_spark.errors import (
    ArgumentTypeError,
    LocalProtocolError,
    PipelineError,
    TransportError,
    WallarooError,
    bounded_reason,
    one_line,
    shown_error,
)

log = one_line("wallaroo_spark.client")

Message = Any
"""A ``SubscriberMessage`` or a ``WorkerMessage``; both have the same fields but their joins."""


@dataclass(eq=False)
class DeliveryAnswers:
    """The state of one delivery of a channel: the answers that its program waits for. Made in the event loop."""

    number: int
    """Number of the delivery in its channel."""
    settled: asyncio.Future[Any] = field(default_factory=asyncio.Future)
    """The answer to the ack or nack."""
    states: defaultdict[int, asyncio.Future[None]] = field(default_factory=partial(defaultdict, asyncio.Future))
    """The answers to statements, by place; place -1 is the begin."""
    statements: int = 0
    """Number of statements so far."""
    acked: bool = False
    """Whether the program has acked or nacked it."""
    over: str = ""
    """Why the delivery has ended without the program's doing; empty: it has not."""
    owed: bool = False
    """Whether the delivery was taken away, and the gateway is to be told when the program has ended with it."""

    def end(self, error: Exception, reason: str) -> None:
        """The delivery has ended; all that waits for an answer gets the error."""
        self.over = self.over or reason
        for future in (self.settled, *self.states.values()):
            if not future.done():
                future.set_exception(error)
                # Retrieved here, because nobody may wait for it.
                future.exception()


@dataclass(eq=False)
class MembershipChannel:
    """One call of ``Subscribe`` or ``Work``, with the class of its messages."""

    call: Any
    message: type[Message]
    name: str
    """Its name in the log and in errors."""
    joined: Callable[[], None]
    """Called when the member is taken in."""
    member: str = ""
    """Name of the member; empty before it was taken in."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: dict[int, DeliveryAnswers] = field(default_factory=dict)
    """The deliveries without an end, by number."""
    _begun: dict[int, Any] = field(default_factory=dict)

    async def deliveries(self, join: Any) -> AsyncIterator[Any]:
        """Join, and yield the messages of deliveries until the gateway ends the call.

        Raises ``grpc.aio.AioRpcError`` with the reason of the end.
        """
        try:
            await self.send(join=join)
            while (event := await self.call.read()) is not grpc.aio.EOF:
                kind = event.WhichOneof("event")
                if kind == "delivery":
                    if (whole := self._whole(event.delivery)) is not None:
                        self.open[whole.delivery] = DeliveryAnswers(whole.delivery)
                        yield whole
                elif kind is not None:
                    self._take(kind, getattr(event, kind))
        finally:
            self.close()

    def close(self) -> None:
        """End the call; the deliveries that are open are given to another member."""
        self.call.cancel()
        lost = TransportError(
            f"{self.name}: the connection was lost before the answer came, so the delivery may come again; ids of "
            "events, or a transaction, make its effects happen once",
            code="delivery-lost",
        )
        for delivery in self.open.values():
            delivery.end(lost, "the connection was lost")
        self.open.clear()

    async def send(self, **message: Any) -> None:
        """Send a message. Raises ``grpc.aio.AioRpcError`` or :class:`TransportError` when the call has ended."""
        async with self._writing:
            try:
                await self.call.write(self.message(**message))
            except (asyncio.InvalidStateError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_cancelled_itself():
                    raise
                raise TransportError(
                    f"{self.name}: the connection was lost, so the delivery comes again", code="delivery-lost"
                ) from None

    def _whole(self, message: Any) -> Any:
        """The delivery whose last message this is; None while more are to come. Only groups have such deliveries."""
        begun = self._begun.pop(message.delivery, None)
        if begun is not None:
            begun.events.extend(message.events)
        if getattr(message, "more", False):
            self._begun[message.delivery] = begun or message
            return None
        return begun or message

    def _take(self, kind: str, event: Any) -> None:
        if kind == "joined":
            self.member = event.member
            self.joined()
            log.info("%s: joined as %s", self.name, event.member)
            return
        delivery = self.open.get(event.delivery)
        if kind == "warning":
            log.warning("%s: delivery %d: %s", self.name, event.delivery, event.text)
        elif delivery is None:
            log.debug("%s: %s of the unknown delivery %d", self.name, kind, event.delivery)
        elif kind == "settled":
            del self.open[event.delivery]
            if not delivery.settled.done():
                delivery.settled.set_result(event)
        elif kind == "withdrawn":
            del self.open[event.delivery]
            log.warning("%s: delivery %d was withdrawn: %s", self.name, event.delivery, event.reason)
            delivery.owed = event.taken_away
            delivery.end(
                PipelineError(
                    f"{self.name}: the delivery was withdrawn: {event.reason}; its ack has no effect",
                    code="delivery-ended",
                ),
                f"it was withdrawn: {event.reason}",
            )
        elif kind == "statement":
            self._statement(delivery, event)

    def _statement(self, delivery: DeliveryAnswers, event: Any) -> None:
        answer = delivery.states[event.place]
        state = type(event).State.Name(event.state)
        if answer.done():
            return
        if state == "REJECTED":
            answer.set_exception(
                PipelineError(
                    f"{self.name}: statement {event.place} of the transaction was rejected: {event.reason}; nothing "
                    "of the transaction is written, and the delivery counts as nacked",
                    code="statement-rejected",
                )
            )
            answer.exception()
        elif state in ("APPLIED", "COMMITTED"):
            answer.set_result(None)


def check_open(delivery: DeliveryAnswers, action: str) -> None:
    """Raise :class:`LocalProtocolError` for an action on a delivery that has ended."""
    if delivery.acked or delivery.over:
        why = delivery.over or "it was acked or nacked already"
        raise LocalProtocolError(f"{action}: the delivery has ended: {why}", code="delivery-ended")


ENDED = ("delivery-lost", "delivery-ended", "delivery-not-open")
"""The codes of deliveries that have ended without their ack, and come again."""


@dataclass(frozen=True)
class EventPlace:
    """Where an event was written."""

    partition: int
    """Number of the partition, from 0."""
    offset: int
    """Offset in the partition, from 1."""


@dataclass(frozen=True)
class WrittenEvents:
    """Where the events of one statement of a transaction were written."""

    stream: str
    places: tuple[EventPlace, ...]
    """A place for each event, in their order; offset 0 for one that was not written."""
    reason: str = ""
    """Why events were not written: their stream was deleted before the commit reached it. Empty: all were."""


@dataclass(frozen=True)
class Output:
    """The output of a stage, with the events of its stream outputs."""

    data: Any = None
    """The output: bytes, a str or a JSON value. None: the stage has no output."""
    streams: Mapping[str, Any] = field(default_factory=dict)
    """The events of each stream output: an :class:`Event` or a sequence of them, by the stream's name."""
    content_type: str = ""
    """Content type of the output; empty: the one of the type in which ``data`` is given."""


def places_of(places: Any) -> tuple[EventPlace, ...]:
    """The places of a message."""
    return tuple(EventPlace(place.partition, place.offset) for place in places)


class DeliveryBase:
    """The part that deliveries of groups and of stages have in common.

    As a context manager it acks at the end of the block, and nacks when the block raises, unless the block did either.
    """

    def __init__(self, source: str, name: str, channel: MembershipChannel, message: Any) -> None:
        self._channel = channel
        self._delivery = channel.open[message.delivery]
        self._source = source
        self._name = name
        self.timeout: float = message.timeout / 1000
        """Seconds within which it is to be acked, nacked or extended; 0 for no limit."""
        self.partition: int = message.partition
        """Number of the partition of the stream, or of the pipeline's input stream."""

    @property
    def over(self) -> bool:
        """Whether it was acked, nacked or withdrawn, or the connection was lost."""
        return self._delivery.acked or bool(self._delivery.over)

    async def nack(self, delay: float | timedelta = 0, reason: str = "") -> None:
        """Give it back: it is delivered again, after ``delay`` seconds at the earliest. ``reason`` is shown in the
        log of the gateway, in the history of an instance, and in a dead letter.

        Raises :class:`LocalProtocolError` for a delivery that has ended, :class:`TransportError` when the connection is
        lost.
        """
        milliseconds = milliseconds_of(delay, "delay")
        message = pb.Nack(delivery=self._delivery.number, delay=milliseconds, reason=bounded_reason(str(reason)))
        await self._settle("nack", nack=message)

    async def extend(self) -> None:
        """The program works on it: its time (``deliveryTimeout``) begins anew, when the next batch is committed.

        Raises as :meth:`nack`. Without this the delivery is taken away once its time is over, and comes to another
        member.
        """
        check_open(self._delivery, f"{self._name}: extend")
        await self._send("extend", extend=pb.Extend(delivery=self._delivery.number))

    def extend_in_thread(self) -> None:
        """As :meth:`extend`, for a function that runs in a thread."""
        asyncio.run_coroutine_threadsafe(self.extend(), self._delivery.settled.get_loop()).result()

    async def begin(self) -> ClientTransaction:
        """Begin a transaction, whose events are written with the ack of this delivery, or not at all.

        Raises as :meth:`nack`, and :class:`PipelineError` when it is refused.
        """
        check_open(self._delivery, f"{self._name}: begin")
        answer = self._delivery.states[-1]
        await self._send("begin", begin=pb.Begin(delivery=self._delivery.number))
        await answer
        return ClientTransaction(self)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[ClientTransaction]:
        """A transaction as a context manager: the end of the block acks the delivery, an error in it nacks it."""
        transaction = await self.begin()
        try:
            yield transaction
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        if self._delivery.acked:
            await self._release()
        else:
            # Raises when the delivery was withdrawn within the block: nothing of the transaction is written then.
            transaction.written = await self._default_ack()

    async def _acked(self, **more: Any) -> tuple[WrittenEvents, ...]:
        message = pb.Ack(delivery=self._delivery.number, **more)
        answer = await self._settle("ack", ack=message)
        if answer.problem.text or answer.problem.code:
            raise PipelineError(
                f"{self._name}: the ack was refused: {answer.problem.text}; the delivery counts as nacked",
                code=answer.problem.code or "delivery-refused",
            )
        for place, one in enumerate(answer.written):
            if one.reason:
                log.warning(
                    "%s: events of the committed statement %d were not written: %s", self._name, place, one.reason
                )
        return tuple(WrittenEvents(one.stream, places_of(one.places), one.reason) for one in answer.written)

    async def _release(self) -> None:
        """The program has ended with a delivery that was taken away: its place is free again."""
        if self._delivery.owed:
            self._delivery.owed = False
            with contextlib.suppress(WallarooError):
                await self._send("nack", nack=pb.Nack(delivery=self._delivery.number))

    async def _settle(self, action: str, **message: Any) -> Any:
        await self._release()
        check_open(self._delivery, f"{self._name}: {action}")
        self._delivery.acked = True
        await self._send(action, **message)
        return await asyncio.shield(self._delivery.settled)

    async def _state_events(self, stream: str, events: tuple[Event, ...], partition: int | None) -> None:
        check_open(self._delivery, f"{self._name}: publish in the transaction")
        statement = within_limit(
            pb.Statement(delivery=self._delivery.number, events=stream_events(stream, events, partition, self._source)),
            f"{self._name}: publish in the transaction",
        )
        answer = self._delivery.states[self._delivery.statements]
        self._delivery.statements += 1
        await self._send("statement", statement=statement)
        await answer

    async def _send(self, action: str, **message: Any) -> None:
        try:
            await self._channel.send(**message)
        except grpc.aio.AioRpcError as error:
            self._channel.close()
            raise TransportError(
                f"{refusal(error, f'{self._name}: {action}').message}; the delivery comes again", code="delivery-lost"
            ) from error

    async def _default_ack(self) -> Any:
        return await self._acked()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.over:
            await self._release()
            return
        try:
            if error is None:
                await self._default_ack()
            else:
                await self.nack(reason=shown_error(error))
        except WallarooError as ended:
            # The error of the block is not hidden by that of its nack. Otherwise a delivery that was lost or withdrawn
            # comes again, so the loop of the program goes on.
            if error is None and ended.code not in ENDED:
                raise
            log.warning("%s", ended)


class StreamDelivery(DeliveryBase):
    """Events of one partition of a stream, for a member of a group."""

    def __init__(self, source: str, name: str, channel: MembershipChannel, message: pb.GroupDelivery) -> None:
        super().__init__(source, name, channel, message)
        self.first = message.first
        """Offset of the first event; those of the others follow without a hole."""
        self.missed = message.missed
        """Number of events that retention removed before the group had them, since its last delivery."""
        self.events = tuple(Event.from_message(event) for event in message.events)
        """The events, in the order of their offsets."""

    def __repr__(self) -> str:
        last = self.first + len(self.events) - 1
        return f"<StreamDelivery of {self._name}, partition {self.partition}, offsets {self.first} to {last}>"

    async def ack(self) -> tuple[WrittenEvents, ...]:
        """The events are done. Returns when that is committed, with the places of the transaction's events.

        Raises as :meth:`nack`, and :class:`PipelineError` when the ack is refused.
        """
        return await self._acked()


class StageWork(DeliveryBase):
    """One stage of one instance, for a program that works on the stage."""

    def __init__(
        self, source: str, pipeline: str, stage: str, channel: MembershipChannel, message: pb.StageDelivery
    ) -> None:
        super().__init__(source, f"stage {stage} of {pipeline}", channel, message)
        self.pipeline = pipeline
        """Name of the pipeline."""
        self.stage = stage
        """Name of the stage."""
        self.instance = message.instance
        """Number of the instance: the offset of the event that began it."""
        self.birth = message.birth
        """Version of the schema with which the pipeline was declared first. It is another one, and instances have the
        same numbers again, after the pipeline was deleted and declared anew."""
        self.root_event = Event.from_message(message.root_event) if message.HasField("root_event") else None
        """The event that began the instance, where the stage is given it."""
        self.outputs = {name: decode_value(one.data, one.content_type) for name, one in message.outputs.items()}
        """The outputs of the stages that it depends on, decoded by their content types."""
        self.payloads = {name: (one.data, one.content_type) for name, one in message.outputs.items()}
        """The same outputs as bytes, with their content types."""

    def __repr__(self) -> str:
        return f"<StageWork of {self._name}, instance {self.instance} of partition {self.partition}>"

    async def ack(self, output: Any = None) -> tuple[WrittenEvents, ...]:
        """The stage is done, with this output: bytes, a str, a JSON value, an :class:`Output`, or None for none.

        Returns when that is committed. Raises as :meth:`nack`, and :class:`PipelineError` when the ack is refused.
        """
        return await self._acked(**self.checked(output))

    def checked(self, output: Any) -> dict[str, Any]:
        """The fields of the ack for an output.

        Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError` for one that cannot be sent.
        """
        given = output if isinstance(output, Output) else Output(output)
        found: dict[str, Any] = {
            "stream_outputs": [
                stream_events(stream, _events(stream, events), None, self._source)
                for stream, events in given.streams.items()
            ]
        }
        if given.data is not None:
            data, content_type = encode_value(given.data, "an output")
            found["output"] = pb.Payload(data=data, content_type=given.content_type or content_type)
        within_limit(pb.Ack(delivery=self._delivery.number, **found), f"{self._name}: ack")
        return found


def stream_events(stream: str, events: tuple[Event, ...], partition: int | None, source: str) -> pb.StreamEvents:
    """The message of events for a stream."""
    return pb.StreamEvents(stream=stream, events=[event.to_message(source) for event in events], partition=partition)


def _events(stream: str, events: Any) -> tuple[Event, ...]:
    if isinstance(events, Event):
        return (events,)
    if isinstance(events, list | tuple):
        return events_of(events) if events else ()
    raise ArgumentTypeError(
        f"the events of stream output {stream} are an Event or a list of them, and these are {type(events).__name__}",
        code="argument-type",
        argument="streams",
    )


class ClientTransaction:
    """A transaction within a delivery; its ack commits it, a nack or a lost connection rejects it."""

    def __init__(self, delivery: DeliveryBase) -> None:
        self._of = delivery
        self.written: tuple[WrittenEvents, ...] = ()
        """Where the events were written, by statement; known behind the block of :meth:`DeliveryBase.transaction`."""

    async def publish(self, stream: str, *events: Event, partition: int | None = None) -> None:
        """Add events for a stream. Returns when the statement is applied: it can be committed.

        Raises :class:`PipelineError` when it is rejected, with which the whole transaction is, and as
        :meth:`DeliveryBase.nack`.
        """
        await self._of._state_events(path_of(stream, "stream"), events_of(events), partition_of_call(partition))


D = TypeVar("D", bound=DeliveryBase)


@dataclass(eq=False)
class Membership(Generic[D]):
    """An asynchronous iterator of deliveries. It joins at the first one, and leaves at :meth:`close`.

    Iterating raises the error of a request that is refused for good, and goes on for ever otherwise: without a gateway
    it waits for one.
    """

    gateways: Gateways
    name: str
    """Its name in the log and in errors."""
    method: Callable[[GatewayConnection], Any]
    """Chooses the method of a gateway that is called."""
    message: type[Message]
    join: Any
    """The first message of the call."""
    make: Callable[[MembershipChannel, Any], D]
    """Makes the delivery of a program."""
    closed: bool = False
    """Whether the member has left, or was refused."""
    joined: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether the member is taken in by every partition; it is cleared while there is no connection."""
    _queue: asyncio.Queue[D | Exception | None] = field(default_factory=asyncio.Queue)
    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Join, without waiting for it. Iterating does so, too."""
        if self._task is None and not self.closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        self.start()
        while True:
            if self.closed and self._queue.empty():
                raise StopAsyncIteration
            found = await self._queue.get()
            if found is None:
                raise StopAsyncIteration
            if isinstance(found, Exception):
                self.closed = True
                raise found
            # A delivery whose connection is lost already comes again.
            if not found.over:
                return found

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave; deliveries that are open are given to another member. May be called again."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        self._queue.put_nowait(None)

    async def _run(self) -> None:
        try:
            await self.gateways.keep(self.name, "joining", self._connection)
        except Exception as error:
            self._queue.put_nowait(error)

    async def _connection(self, gateway: GatewayConnection, attempts: Attempts) -> None:
        def has_joined() -> None:
            attempts.succeeded()
            self.joined.set()

        call = self.method(gateway)(metadata=self.gateways.metadata)
        channel = MembershipChannel(call, self.message, self.name, has_joined)
        try:
            async for message in channel.deliveries(self.join):
                self._queue.put_nowait(self.make(channel, message))
        finally:
            self.joined.clear()
