"""Endpoints: each call is answered by one consumer, which is chosen by its free places. Pure.

A call waits when every consumer is busy, and fails at once when there is none. A consumer whose calls fail one after
the other rests for a while, as long as others do not. Source: ``docs/pipelines/gateway.md``.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from wallaroo_spark.api import cloudevents_pb2 as wire
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.gateway.limits import ByteBudget, GatewayLimits, Refused, WaitingMessages, busy, invalid

FAILURES = 3
"""Failures in a row after which a consumer rests. A choice: one wrong question is no sign of a broken consumer."""
REST_SECONDS = 1.0
"""The length of the first rest; each further one without an answer between is twice as long."""
LONGEST_REST_SECONDS = 30.0
"""The length of the longest rest. A choice: a consumer that works again is used again within that time."""


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
    answers: WaitingMessages[pb.CallMessage]
    """Messages for the caller."""
    asked: WaitingMessages[pb.ServeEvent]
    """Messages of the caller that the consumer was not sent yet."""
    consumer: Consumer | None = None
    """The consumer; None while the call waits for one."""
    number: int = 0
    """Number of the call at its consumer."""
    heard: bool = False
    """Whether the consumer was sent a message of the call."""
    done: bool = False
    """Whether the answer is complete, or the call has failed."""
    problem: Refused | None = None
    """Why it has failed."""

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
    turn: int = 0
    """When it got its newest call, or has come: the greater, the later."""
    failures: int = 0
    """Its calls in a row that have failed."""
    rests_until: float = 0.0
    """Until when it gets no call while other consumers do not rest."""
    ready: dict[int, EndpointCall] = field(default_factory=dict)
    """Its calls that have messages for it, by their numbers; they take turns."""
    gone: deque[int] = field(default_factory=deque)
    """The numbers of calls that it has to be told are gone."""
    leaving: Refused | None = None
    """Why it gets no more calls; it ends with its last call."""

    @property
    def ended(self) -> Refused | None:
        """Why its channel ends; None while it lives."""
        return self.leaving if not self.calls and not self.gone else None

    def take(self) -> pb.ServeEvent | None:
        """The next message for the consumer."""
        if self.gone:
            return pb.ServeEvent(call=self.gone.popleft(), gone=True)
        if not self.ready:
            return None
        number, call = next(iter(self.ready.items()))
        del self.ready[number]
        event = call.asked.take()
        assert event is not None, number
        event.call = number
        call.heard = True
        if call.asked:
            self.ready[number] = call
        call.changed()
        return event


@dataclass(eq=False, repr=False)
class Endpoints:
    """The consumers and calls of all endpoints that this gateway owns. ``clock`` gives the seconds of rests."""

    limits: GatewayLimits
    budget: ByteBudget
    clock: Callable[[], float] = time.monotonic
    _turns: Iterator[int] = field(default_factory=partial(itertools.count, 1), init=False)
    _consumers: dict[str, list[Consumer]] = field(default_factory=dict, init=False)
    _waiting: dict[str, dict[EndpointCall, None]] = field(default_factory=dict, init=False)

    @property
    def consumers(self) -> list[Consumer]:
        """All consumers."""
        return [one for consumers in self._consumers.values() for one in consumers]

    def serve(self, endpoint: str, concurrency: int, changed: Callable[[], None]) -> Consumer:
        """Add a consumer."""
        consumer = Consumer(endpoint, concurrency, changed, turn=next(self._turns))
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
        waiting = self._waiting.setdefault(endpoint, {})
        if len(waiting) >= self.limits.requests:
            raise busy(f"{len(waiting)} calls of endpoint {endpoint} wait for a consumer; run more, or call later")
        answers: WaitingMessages[pb.CallMessage] = WaitingMessages(self.budget)
        call = EndpointCall(endpoint, *single, changed, answers, WaitingMessages(self.budget))
        self._ask(call, pb.ServeEvent(event=event, end=call.single_input))
        waiting[call] = None
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
        return len(call.asked) >= self.limits.call_messages and not call.done

    def rested(self) -> None:
        """Give waiting calls to consumers whose rest is over. To be called now and then."""
        for endpoint in list(self._waiting):
            self._assign(endpoint)

    def hang_up(self, call: EndpointCall, *, late: bool = False) -> None:
        """The caller has gone, or the call has failed: its consumer is told, and is free.

        ``late``: the time of the caller is over, so its consumer has failed.
        """
        if late and call.consumer is not None and call.heard and not call.done:
            self._failed(call.consumer)
        call.end()
        call.answers.clear()
        call.asked.clear()
        consumer = call.consumer
        if consumer is None:
            self._waiting.get(call.endpoint, {}).pop(call, None)
        elif consumer.calls.pop(call.number, None) is not None:
            consumer.ready.pop(call.number, None)
            if call.heard:
                consumer.gone.append(call.number)
            consumer.changed()
            self._assign(call.endpoint)

    def answer(self, consumer: Consumer, message: pb.ServeMessage) -> None:
        """A message of a consumer; one for a call that is gone is dropped."""
        call = consumer.calls.get(message.call)
        if call is None:
            return
        if message.error:
            self._failed(consumer)
            text = f"the consumer of endpoint {call.endpoint} reports: {message.error[:1000]}"
            self._close(call, Refused(text, code="call-failed"))
            return
        consumer.failures = 0
        consumer.rests_until = 0.0
        if message.HasField("event"):
            answer, limits, waiting = pb.CallMessage(event=message.event), self.limits, call.answers
            if not waiting.has_room(answer.ByteSize(), limits.call_messages, limits.waiting_bytes):
                call.end(busy(f"the caller does not read the answer; {len(waiting)} messages wait; read faster"))
                self.hang_up(call)
                return
            call.answers.add(answer)
            call.changed()
        if message.end or (call.single_output and message.HasField("event")):
            self._close(call, None)

    def _close(self, call: EndpointCall, problem: Refused | None) -> None:
        consumer = call.consumer
        assert consumer is not None
        del consumer.calls[call.number]
        consumer.ready.pop(call.number, None)
        call.end(problem)
        self._assign(call.endpoint)
        if consumer.leaving is not None:
            consumer.changed()

    def _ask(self, call: EndpointCall, event: pb.ServeEvent) -> None:
        if call.done:
            return
        if not self.budget.has_room(event.ByteSize()):
            raise busy(
                f"{self.budget.used} bytes of messages wait for clients of this gateway, which is the limit; call "
                "again later, or run more consumers"
            )
        call.asked.add(event)
        if call.consumer is not None:
            call.consumer.ready[call.number] = call
            call.consumer.changed()

    def _failed(self, consumer: Consumer) -> None:
        """A call of a consumer has failed."""
        consumer.failures += 1
        if consumer.failures >= FAILURES:
            seconds = min(REST_SECONDS * 2.0 ** min(consumer.failures - FAILURES, 10), LONGEST_REST_SECONDS)
            consumer.rests_until = self.clock() + seconds

    def _assign(self, endpoint: str) -> None:
        """Give waiting calls to the consumers with the greatest part of their places free, which take turns."""
        waiting = self._waiting.get(endpoint)
        if not waiting:
            return
        now = self.clock()
        staying = [one for one in self._consumers.get(endpoint, ()) if one.leaving is None]
        # When all rest, the questions are the likely reason, and nobody is better than another.
        usable = [one for one in staying if one.rests_until <= now] or staying
        while waiting:
            free = [one for one in usable if len(one.calls) < one.concurrency]
            if not free:
                return
            consumer = min(free, key=lambda one: (len(one.calls) / one.concurrency, one.turn))
            call = next(iter(waiting))
            del waiting[call]
            consumer.turn = next(self._turns)
            consumer.last += 1
            call.consumer, call.number = consumer, consumer.last
            consumer.calls[call.number] = call
            if call.asked:
                consumer.ready[call.number] = call
                consumer.changed()


def _no_consumer(endpoint: str) -> Refused:
    text = f"endpoint {endpoint} has no consumer now; start one, and call again"
    return Refused(text, code="no-consumer")
