"""Endpoints: each call is answered by one consumer, which is chosen by its free places. Pure.

A call waits when every consumer is busy, and fails at once when there is none. Source: ``docs/pipelines/gateway.md``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from wallaroo_spark.api import cloudevents_pb2 as wire
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.refusals import Refused, busy, invalid


@dataclass(eq=False)
class EndpointCall:
    """A call, as its caller sees it."""

    endpoint: str
    """Path of the endpoint."""
    single_input: bool
    """Whether the request is one message."""
    single_output: bool
    """Whether the answer is one message."""
    changed: Callable[[], None]
    """Called when there is something for the caller, or room for its next message."""
    consumer: Consumer | None = None
    """The consumer; None while the call waits for one."""
    number: int = 0
    """Number of the call at its consumer."""
    answers: deque[pb.CallMessage] = field(default_factory=deque)
    """Messages for the caller."""
    bytes: int = 0
    """Their bytes."""
    asked: deque[pb.ServeEvent] = field(default_factory=deque)
    """Messages of the caller, until there is a consumer."""
    queued: int = 0
    """Messages of the caller that the consumer was not sent yet."""
    sent: int = 0
    """Messages of the caller."""
    done: bool = False
    """Whether the answer is complete, or the call has failed."""
    problem: Refused | None = None
    """Why it has failed."""

    def take(self) -> pb.CallMessage | None:
        """The next message for the caller."""
        if not self.answers:
            return None
        answer = self.answers.popleft()
        self.bytes -= answer.ByteSize()
        return answer

    def end(self, problem: Refused | None = None) -> None:
        """The answer is complete, or the call has failed."""
        if not self.done:
            self.done, self.problem = True, problem
            self.changed()


@dataclass(eq=False)
class Consumer:
    """A client that serves an endpoint."""

    endpoint: str
    """Path of the endpoint."""
    concurrency: int
    """The most calls at once."""
    changed: Callable[[], None]
    """Called when there is something for the consumer."""
    calls: dict[int, EndpointCall] = field(default_factory=dict)
    """Its calls, by their numbers."""
    last: int = 0
    """Number of its newest call."""
    waiting: deque[tuple[pb.ServeEvent, EndpointCall | None]] = field(default_factory=deque)
    """Messages for it, each with its call where that counts the message."""
    leaving: Refused | None = None
    """Why it gets no more calls; it ends with its last call."""

    @property
    def ended(self) -> Refused | None:
        """Why its channel ends; None while it lives."""
        return self.leaving if not self.calls and not self.waiting else None

    def take(self) -> pb.ServeEvent | None:
        """The next message for the consumer."""
        if not self.waiting:
            return None
        event, call = self.waiting.popleft()
        if call is not None:
            call.queued -= 1
            call.changed()
        return event

    def add(self, event: pb.ServeEvent, call: EndpointCall | None = None) -> None:
        """Add a message of a call."""
        event.call = event.call or (call.number if call is not None else 0)
        self.waiting.append((event, call))
        self.changed()


class Endpoints:
    """The consumers and calls of all endpoints that this gateway owns."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._consumers: dict[str, list[Consumer]] = {}
        self._waiting: dict[str, deque[EndpointCall]] = {}

    @property
    def consumers(self) -> list[Consumer]:
        """All consumers."""
        return [one for consumers in self._consumers.values() for one in consumers]

    def serve(self, endpoint: str, concurrency: int, changed: Callable[[], None]) -> Consumer:
        """Add a consumer."""
        consumer = Consumer(endpoint, concurrency, changed)
        self._consumers.setdefault(endpoint, []).append(consumer)
        self._assign(endpoint)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """A consumer has gone; the results of its calls are unknown."""
        consumers = self._consumers[consumer.endpoint]
        consumers.remove(consumer)
        for call in consumer.calls.values():
            call.end(
                Refused(
                    f"the consumer of endpoint {consumer.endpoint} has gone before it answered; it may have done the "
                    "work; call again if that may be done twice",
                    code="consumer-gone",
                    status="UNKNOWN",
                )
            )
        if not consumers:
            del self._consumers[consumer.endpoint]
            for call in self._waiting.pop(consumer.endpoint, ()):
                call.end(_no_consumer(consumer.endpoint))

    def retire(self, consumer: Consumer, problem: Refused) -> None:
        """Give a consumer no more calls; its channel ends with this error after its last one."""
        consumer.leaving = consumer.leaving or problem
        consumer.changed()

    def call(
        self, endpoint: str, event: wire.CloudEvent, single: tuple[bool, bool], changed: Callable[[], None]
    ) -> EndpointCall:
        """Begin a call with its first message. ``single``: whether request and answer are one message each.

        Raises :class:`Refused` without a consumer, and when too many calls wait.
        """
        if not any(one.leaving is None for one in self._consumers.get(endpoint, ())):
            raise _no_consumer(endpoint)
        waiting = self._waiting.setdefault(endpoint, deque())
        if len(waiting) >= self._limits.requests:
            raise busy(f"{len(waiting)} calls of endpoint {endpoint} wait for a consumer; run more, or call later")
        call = EndpointCall(endpoint, *single, changed)
        waiting.append(call)
        self._ask(call, pb.ServeEvent(event=event, end=call.single_input))
        self._assign(endpoint)
        return call

    def more(self, call: EndpointCall, event: wire.CloudEvent) -> None:
        """A further message of the caller. Raises :class:`Refused` where the request is one message."""
        if call.single_input:
            raise invalid(f"endpoint {call.endpoint} takes one message; send one, or declare input: stream")
        self._ask(call, pb.ServeEvent(event=event))

    def finish(self, call: EndpointCall) -> None:
        """The caller sends no more messages."""
        if not call.single_input and not call.done:
            self._ask(call, pb.ServeEvent(end=True))

    def full(self, call: EndpointCall) -> bool:
        """Whether the caller has to wait until its consumer has read."""
        return call.queued >= self._limits.call_messages and not call.done

    def hang_up(self, call: EndpointCall) -> None:
        """The caller has gone, or the call has failed: its consumer is told, and is free."""
        call.end()
        consumer = call.consumer
        if consumer is None:
            waiting = self._waiting.get(call.endpoint)
            if waiting is not None and call in waiting:
                waiting.remove(call)
        elif consumer.calls.pop(call.number, None) is not None:
            consumer.add(pb.ServeEvent(call=call.number, gone=True))
            self._assign(call.endpoint)

    def answer(self, consumer: Consumer, message: pb.ServeMessage) -> None:
        """A message of a consumer; one for a call that is gone is dropped."""
        call = consumer.calls.get(message.call)
        if call is None:
            return
        if message.error:
            text = f"the consumer of endpoint {call.endpoint} reports: {message.error[:1000]}"
            self._close(call, Refused(text, code="call-failed", status="UNKNOWN"))
            return
        if message.HasField("event"):
            answer = pb.CallMessage(event=message.event)
            size = answer.ByteSize()
            if call.answers and (
                len(call.answers) >= self._limits.call_messages or call.bytes + size > self._limits.waiting_bytes
            ):
                call.end(busy(f"the caller does not read the answer; {len(call.answers)} messages wait; read faster"))
                self.hang_up(call)
                return
            call.answers.append(answer)
            call.bytes += size
            call.changed()
        if message.end or (call.single_output and message.HasField("event")):
            self._close(call, None)

    def _close(self, call: EndpointCall, problem: Refused | None) -> None:
        consumer = call.consumer
        assert consumer is not None
        del consumer.calls[call.number]
        call.end(problem)
        self._assign(call.endpoint)
        if consumer.leaving is not None:
            consumer.changed()

    def _ask(self, call: EndpointCall, event: pb.ServeEvent) -> None:
        if call.done:
            return
        call.queued += 1
        call.sent += 1
        if call.consumer is None:
            call.asked.append(event)
        else:
            call.consumer.add(event, call)

    def _assign(self, endpoint: str) -> None:
        """Give waiting calls to the consumers with the greatest part of their places free."""
        waiting = self._waiting.get(endpoint)
        while waiting:
            free = [
                one
                for one in self._consumers.get(endpoint, ())
                if one.leaving is None and len(one.calls) < one.concurrency
            ]
            if not free:
                return
            consumer = min(free, key=lambda one: (len(one.calls) / one.concurrency, one.last))
            call = waiting.popleft()
            consumer.last += 1
            call.consumer, call.number = consumer, consumer.last
            consumer.calls[call.number] = call
            while call.asked:
                consumer.add(call.asked.popleft(), call)


def _no_consumer(endpoint: str) -> Refused:
    text = f"endpoint {endpoint} has no consumer now; start one, and call again"
    return Refused(text, code="no-consumer", status="FAILED_PRECONDITION")
