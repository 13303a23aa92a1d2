"""Deliveries as programs have them: their events or inputs, their ack or nack, and their transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import grpc

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.arguments import events_of, milliseconds_of, partition_of_call, path_of
from wallaroo_spark.client.events.event import Event
from wallaroo_spark.client.events.values import decode_value, encode_value
from wallaroo_spark.client.members.channel import DeliveryAnswers, MembershipChannel, check_open
from wallaroo_spark.client.refusals import refusal
from wallaroo_spark.client.requests import within_limit
from wallaroo_spark.errors import ArgumentTypeError, PipelineError, TransportError, WallarooError, one_line

log = one_line(logging.getLogger("wallaroo_spark.client"))
ENDED = ("delivery-lost", "delivery-ended", "delivery-not-open")
"""The codes of deliveries that have ended without their ack, and come again."""
LONGEST_REASON = 1000
"""The most characters of the reason of a nack. A choice: enough for a message, not for a traceback."""


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
    """Name of the stream."""
    places: tuple[EventPlace, ...]
    """A place for each event, in their order."""


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

    def __init__(self, channel: MembershipChannel, delivery: DeliveryAnswers, source: str, name: str) -> None:
        self._channel = channel
        self._delivery = delivery
        self._source = source
        self._name = name

    @property
    def over(self) -> bool:
        """Whether it was acked, nacked or withdrawn, or the connection was lost."""
        return self._delivery.acked or bool(self._delivery.over)

    async def nack(self, delay: float | timedelta = 0, reason: str = "") -> None:
        """Give it back: it is delivered again, after ``delay`` seconds at the earliest. ``reason`` is for the log.

        Raises :class:`LocalProtocolError` for a delivery that has ended, :class:`TransportError` when the connection is
        lost.
        """
        milliseconds = milliseconds_of(delay, "delay")
        message = pb.Nack(delivery=self._delivery.number, delay=milliseconds, reason=str(reason)[:LONGEST_REASON])
        await self._settle("nack", nack=message)

    async def begin(self) -> ClientTransaction:
        """Begin a transaction, whose events are written with the ack of this delivery, or not at all.

        Raises as :meth:`nack`, and :class:`PipelineError` when it is refused.
        """
        check_open(self._delivery, f"{self._name}: begin")
        answer = self._delivery.state(-1)
        await self._send("begin", begin=pb.Begin(delivery=self._delivery.number))
        await answer
        return ClientTransaction(self)

    def transaction(self) -> TransactionBlock:
        """A transaction as a context manager: the end of the block acks the delivery, an error in it nacks it."""
        return TransactionBlock(self)

    async def _acked(self, **more: Any) -> tuple[WrittenEvents, ...]:
        message = pb.Ack(delivery=self._delivery.number, **more)
        answer = await self._settle("ack", ack=message)
        if answer.problem.text or answer.problem.code:
            raise PipelineError(
                f"{self._name}: the ack was refused: {answer.problem.text}; the delivery counts as nacked",
                code=answer.problem.code or "delivery-refused",
            )
        return tuple(WrittenEvents(one.stream, places_of(one.places)) for one in answer.written)

    async def _settle(self, action: str, **message: Any) -> Any:
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
        answer = self._delivery.state(self._delivery.statements)
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.over:
            return
        try:
            if error is None:
                await self._default_ack()
            else:
                await self.nack(reason=f"{type(error).__name__}: {error}")
        except WallarooError as ended:
            # The error of the block is not hidden by that of its nack. Otherwise a delivery that was lost or withdrawn
            # comes again, so the loop of the program goes on.
            if error is None and ended.code not in ENDED:
                raise
            log.warning("%s", ended)


class StreamDelivery(DeliveryBase):
    """Events of one partition of a stream, for a member of a group."""

    def __init__(self, channel: MembershipChannel, message: pb.GroupDelivery, source: str, name: str) -> None:
        super().__init__(channel, channel.find(message.delivery), source, name)
        self.partition = message.partition
        """Number of the partition."""
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
        self, channel: MembershipChannel, message: pb.StageDelivery, source: str, pipeline: str, stage: str
    ) -> None:
        super().__init__(channel, channel.find(message.delivery), source, f"stage {stage} of {pipeline}")
        self.pipeline = pipeline
        """Name of the pipeline."""
        self.stage = stage
        """Name of the stage."""
        self.instance = message.instance
        """Number of the instance: the offset of the event that began it."""
        self.partition = message.partition
        """Partition of the pipeline's input stream, in which the instance is."""
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


class TransactionBlock:
    """The context manager of a transaction."""

    def __init__(self, delivery: DeliveryBase) -> None:
        self._delivery = delivery
        self._transaction: ClientTransaction | None = None

    async def __aenter__(self) -> ClientTransaction:
        self._transaction = await self._delivery.begin()
        return self._transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transaction is not None
        if error is None and not self._delivery.over:
            self._transaction.written = await self._delivery._default_ack()
        elif not self._delivery.over:
            await self._delivery.__aexit__(kind, error, trace)
