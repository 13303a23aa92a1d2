"""The events of a bulk publish between the program and its gateways: requests, answers and their order. Pure.

Source: ``docs/pipelines/clients.md#publish-many``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.client.events import Event
from wallaroo_spark.client.members import EventPlace
from wallaroo_spark.errors import ConfigurationError, PipelineError, TransportError, WallarooError

AGAIN = ("gateway-busy", "gateway-ends", "publish-refused", "commit-timeout")
"""The codes of problems after which the same request may succeed, with another gateway too."""
_ARGUMENTS = ("token-refused", "permission-missing")
_INVALID = "request-invalid"


@dataclass(frozen=True)
class WindowLimits:
    """The limits of a bulk publish. All are choices: a commit takes half a second, and an event some 200 bytes."""

    events: int = 20_000
    """The most events between the program and its gateways: taken from it, and not yet returned with their places."""
    bytes: int = 16 * 1024 * 1024
    """The bytes of unanswered events from which no more is taken from the program."""
    requests: int = 64
    """The most requests without an answer."""
    request_bytes: int = 512 * 1024
    """The bytes from which a request takes no more events."""


@dataclass(frozen=True)
class PublishedEvent:
    """An event that was published."""

    index: int
    """Its number among the events of the call, from 0."""
    event: Event
    place: EventPlace | None
    """Where it was written; None with durability ``received``, and with ``delay``."""


@dataclass(frozen=True)
class RefusedEvent:
    """An event that cannot be published."""

    index: int
    """Its number among the events of the call, from 0."""
    event: Any
    """The event, or the object that is none."""
    error: WallarooError
    """Why."""


@dataclass(frozen=True)
class _Pending:
    """An event without an answer."""

    index: int
    """Its number among the events of the call."""
    event: Event
    message: Any
    size: int
    """The bytes of the message."""


@dataclass
class _Request:
    """Events that are sent together."""

    number: int
    """Its number, which the answer repeats."""
    events: Sequence[_Pending]
    message: pb.PublishRequest


class BulkWindow:
    """The state of a bulk publish.

    ``make`` makes the request of some events, ``batch`` is the most events of a request. Events are added in their
    order, requests are sent in the order of :meth:`next_request`, and :meth:`take` returns the outcomes in the order of
    the events. After :meth:`lost` everything without an answer is sent again as it was, so a stream that has the events
    already recognizes them.
    """

    def __init__(
        self, make: Callable[[Sequence[Any]], pb.PublishRequest], batch: int, limits: WindowLimits | None = None
    ) -> None:
        self.finished = False
        """Whether no more events come."""
        self._make = make
        self._batch = batch
        self._limits = limits or WindowLimits()
        self.taken = 0
        """The number of outcomes that were taken; the number of the next event."""
        self._added = self._last_request = 0
        self._bytes = 0
        self._waiting: deque[_Pending] = deque()
        self._again: deque[_Request] = deque()
        self._sent: dict[int, _Request] = {}
        self._outcomes: dict[int, PublishedEvent | RefusedEvent] = {}

    @property
    def room(self) -> bool:
        """Whether an event may be added."""
        return self._added - self.taken < self._limits.events and self._bytes < self._limits.bytes

    @property
    def unanswered(self) -> bool:
        """Whether an event has no outcome yet."""
        return bool(self._waiting or self._again or self._sent)

    @property
    def over(self) -> bool:
        """Whether no more events come, and all have an outcome."""
        return self.finished and not self.unanswered

    def add(self, event: Event, message: Any, size: int) -> None:
        """Add the next event, its message and the bytes of that."""
        self._waiting.append(_Pending(self._added, event, message, size))
        self._added += 1
        self._bytes += size

    def refuse(self, event: Any, error: WallarooError) -> None:
        """The next event cannot be sent."""
        self._outcomes[self._added] = RefusedEvent(self._added, event, error)
        self._added += 1

    def next_request(self) -> pb.PublishRequest | None:
        """The next request to send; None when there is nothing to send, or enough is without an answer."""
        if len(self._sent) >= self._limits.requests:
            return None
        if not self._again:
            if not self._waiting:
                return None
            self._again.append(self._request(self._next_events()))
        request = self._again.popleft()
        self._sent[request.number] = request
        return request.message

    def lost(self) -> None:
        """The connection is lost: send everything without an answer again, in its order."""
        self._again.extendleft(reversed(self._sent.values()))
        self._sent.clear()

    def answered(self, reply: pb.PublishReply) -> None:
        """Take an answer.

        Raises :class:`TransportError` for a problem after which the same request may succeed, and the error of a
        problem that all requests have. A request with an invalid event is divided until that event is alone.
        """
        request = self._sent.get(reply.request)
        if request is None:
            return
        problem = reply.problem
        if problem.code or problem.text:
            self._refused(request, problem.code, problem.text)
            return
        del self._sent[request.number]
        places: Sequence[EventPlace | None] = [EventPlace(one.partition, one.offset) for one in reply.places]
        places = places or [None] * len(request.events)
        for pending, place in zip(request.events, places, strict=True):
            self._settle(pending, PublishedEvent(pending.index, pending.event, place))

    def take(self) -> PublishedEvent | RefusedEvent | None:
        """The outcome of the next event; None while it has none."""
        outcome = self._outcomes.pop(self.taken, None)
        if outcome is not None:
            self.taken += 1
        return outcome

    def _refused(self, request: _Request, code: str, text: str) -> None:
        if code in AGAIN:
            raise TransportError(text, code=code)
        if code != _INVALID:
            kind = ConfigurationError if code in _ARGUMENTS else PipelineError
            raise kind(text, code=code or "gateway-refused")
        del self._sent[request.number]
        if len(request.events) == 1:
            [pending] = request.events
            error = PipelineError(text, code=code)
            self._settle(pending, RefusedEvent(pending.index, pending.event, error))
            return
        half = len(request.events) // 2
        for events in (request.events[half:], request.events[:half]):
            self._again.appendleft(self._request(events))

    def _settle(self, pending: _Pending, outcome: PublishedEvent | RefusedEvent) -> None:
        self._outcomes[pending.index] = outcome
        self._bytes -= pending.size

    def _next_events(self) -> list[_Pending]:
        events: list[_Pending] = []
        size = 0
        while self._waiting and len(events) < self._batch and size < self._limits.request_bytes:
            size += self._waiting[0].size
            events.append(self._waiting.popleft())
        return events

    def _request(self, events: Sequence[_Pending]) -> _Request:
        self._last_request += 1
        message = self._make([one.message for one in events])
        message.request = self._last_request
        return _Request(self._last_request, events, message)
