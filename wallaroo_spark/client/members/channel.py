"""The connection of a member: of a group (``Subscribe``) or of a stage (``Work``), from its join to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from wallaroo_spark.errors import LocalProtocolError, PipelineError, TransportError, one_line

log = one_line(logging.getLogger("wallaroo_spark.client"))

Message = Any
"""A ``SubscriberMessage`` or a ``WorkerMessage``; both have the same fields but their joins."""


class DeliveryAnswers:
    """The state of one delivery of a channel: the answers that its program waits for."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the delivery in its channel."""
        loop = asyncio.get_running_loop()
        self.settled: asyncio.Future[Any] = loop.create_future()
        """The answer to the ack or nack."""
        self.states: dict[int, asyncio.Future[None]] = {}
        """The answers to statements, by place; place -1 is the begin."""
        self.statements = 0
        """Number of statements so far."""
        self.acked = False
        """Whether the program has acked or nacked it."""
        self.over = ""
        """Why the delivery has ended without the program's doing; empty: it has not."""

    def state(self, place: int) -> asyncio.Future[None]:
        """The answer to a statement."""
        if place not in self.states:
            self.states[place] = asyncio.get_running_loop().create_future()
        return self.states[place]

    def end(self, error: Exception, reason: str) -> None:
        """The delivery has ended; all that waits for an answer gets the error."""
        self.over = self.over or reason
        for future in (self.settled, *self.states.values()):
            if not future.done():
                future.set_exception(error)
                # Retrieved here, because nobody may wait for it.
                future.exception()


class MembershipChannel:
    """One call of ``Subscribe`` or ``Work``. ``message`` is the class of its messages, ``name`` is for the
    log, and ``joined`` is called when the member is taken in."""

    def __init__(self, call: Any, message: type[Message], name: str, joined: Callable[[], None]) -> None:
        self._joined = joined
        self._call = call
        self._message = message
        self._name = name
        self._writing = asyncio.Lock()
        self._open: dict[int, DeliveryAnswers] = {}
        self._begun: dict[int, Any] = {}
        self.member = ""
        """Name of the member; empty before it was taken in."""
        self.ended = False
        """Whether the call has ended."""

    async def deliveries(self, join: Any) -> AsyncIterator[Any]:
        """Join, and yield the messages of deliveries until the gateway ends the call.

        Raises ``grpc.aio.AioRpcError`` with the reason of the end.
        """
        try:
            await self.send(join=join)
            while (event := await self._call.read()) is not grpc.aio.EOF:
                kind = event.WhichOneof("event")
                if kind == "delivery":
                    if (whole := self._whole(event.delivery)) is not None:
                        self._open[whole.delivery] = DeliveryAnswers(whole.delivery)
                        yield whole
                elif kind is not None:
                    self._take(kind, getattr(event, kind))
        finally:
            self.close()

    def close(self) -> None:
        """End the call; the deliveries that are open are given to another member."""
        self.ended = True
        self._call.cancel()
        lost = TransportError(
            f"{self._name}: the connection was lost before the answer came, so the delivery may come again; ids of "
            "events, or a transaction, make its effects happen once",
            code="delivery-lost",
        )
        for delivery in self._open.values():
            delivery.end(lost, "the connection was lost")
        self._open.clear()

    def find(self, number: int) -> DeliveryAnswers:
        """The state of a delivery that was yielded last under this number."""
        return self._open[number]

    async def send(self, **message: Any) -> None:
        """Send a message. Raises ``grpc.aio.AioRpcError`` or :class:`TransportError` when the call has ended."""
        async with self._writing:
            try:
                await self._call.write(self._message(**message))
            except asyncio.InvalidStateError:
                raise TransportError(
                    f"{self._name}: the connection was lost, so the delivery comes again", code="delivery-lost"
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
            self._joined()
            log.info("%s: joined as %s", self._name, event.member)
            return
        delivery = self._open.get(event.delivery)
        if kind == "warning":
            log.warning("%s: delivery %d: %s", self._name, event.delivery, event.text)
        elif delivery is None:
            log.debug("%s: %s of the unknown delivery %d", self._name, kind, event.delivery)
        elif kind == "settled":
            del self._open[event.delivery]
            if not delivery.settled.done():
                delivery.settled.set_result(event)
        elif kind == "withdrawn":
            del self._open[event.delivery]
            log.warning("%s: delivery %d was withdrawn: %s", self._name, event.delivery, event.reason)
            delivery.end(
                PipelineError(
                    f"{self._name}: the delivery was withdrawn: {event.reason}; its ack has no effect",
                    code="delivery-ended",
                ),
                f"it was withdrawn: {event.reason}",
            )
        elif kind == "statement":
            self._statement(delivery, event)

    def _statement(self, delivery: DeliveryAnswers, event: Any) -> None:
        answer = delivery.state(event.place)
        state = type(event).State.Name(event.state)
        if answer.done():
            return
        if state == "REJECTED":
            answer.set_exception(
                PipelineError(
                    f"{self._name}: statement {event.place} of the transaction was rejected: {event.reason}; nothing "
                    "of the transaction is written, and the delivery counts as nacked",
                    code="statement-rejected",
                )
            )
            answer.exception()
        elif state in ("APPLIED", "COMMITTED") or event.place < 0:
            answer.set_result(None)


def check_open(delivery: DeliveryAnswers, action: str) -> None:
    """Raise :class:`LocalProtocolError` for an action on a delivery that has ended."""
    if delivery.acked or delivery.over:
        why = delivery.over or "it was acked or nacked already"
        raise LocalProtocolError(f"{action}: the delivery has ended: {why}", code="delivery-ended")
