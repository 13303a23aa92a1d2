"""Requests in flight: calls that wait for their commit, and the part of the gateway that an answer is for. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wallaroo_spark.gateway.limits import Refused, invalid
from wallaroo_spark.pipelines.controller.messages.events import Event, RecordsDelayed, RecordsPublished
from wallaroo_spark.pipelines.controller.messages.instructions import AnswerRequest, RefuseRequest, WarnClient
from wallaroo_spark.pipelines.controller.messages.values import Durability, PartitionKey, ReplyTo
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, partition_of

ToInbox = tuple[PartitionKey, Event]
"""An event for the controller of a key."""
Answer = AnswerRequest | RefuseRequest | WarnClient


def reason_of(answer: Answer) -> str:
    """Why a controller refuses or drops a message; empty when it does not."""
    match answer:
        case RefuseRequest():
            return answer.reason
        case WarnClient():
            return answer.text
    return ""


class Asker(Protocol):
    """A part of the gateway that has asked a controller."""

    def answered(self, answer: Answer) -> None:
        """Take the answer to one request."""


class RequestsInFlight:
    """The requests of one gateway that wait for an answer."""

    def __init__(self, gateway: str, generation: int) -> None:
        self.gateway = gateway
        self.generation = generation
        self._askers: dict[int, Asker] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._askers)

    def open(self, asker: Asker) -> ReplyTo:
        """Number a new request."""
        self._last += 1
        self._askers[self._last] = asker
        return ReplyTo(self.gateway, self.generation, self._last)

    def unanswered(self) -> ReplyTo:
        """The request of a message whose answer nobody reads."""
        return ReplyTo(self.gateway, self.generation, 0)

    def forget(self, request: int) -> None:
        """Nobody waits for the answer any more."""
        self._askers.pop(request, None)

    def answered(self, answer: Answer) -> None:
        """Pass an answer on; one to an unknown request, or to an earlier generation, is dropped."""
        reply = answer.reply_to
        ours = (reply.gateway, reply.generation) == (self.gateway, self.generation)
        if ours and (asker := self._askers.pop(reply.request, None)) is not None:
            asker.answered(answer)


def by_partition(
    stream: str, partitions: int, events: Sequence[CloudEvent], partition: int | None
) -> list[tuple[PartitionKey, list[int]]]:
    """Divide events over the partitions of a stream: each partition with the places of its events, in order.

    Raises :class:`Refused` for a partition that the stream does not have.
    """
    if partition is not None:
        require_partition(stream, partitions, partition)
        return [(PartitionKey(stream, partition), [*range(len(events))])]
    found: dict[int, list[int]] = {}
    for place, event in enumerate(events):
        found.setdefault(partition_of(event, partitions), []).append(place)
    return [(PartitionKey(stream, number), places) for number, places in sorted(found.items())]


def require_partition(stream: str, partitions: int, partition: int) -> None:
    """Raise :class:`Refused` for the number of a partition that is not less than the stream's number of partitions."""
    if partition >= partitions:
        raise invalid(
            f"stream {stream} has {partitions} partitions, from 0, and {partition} is asked for; name one of them"
        )


@dataclass(eq=False, repr=False)
class WaitingCall:
    """A call that asks some controllers, and is done when all have answered. ``changed`` is called then."""

    requests: RequestsInFlight
    changed: Callable[[], None]
    done: bool = field(default=False, init=False)
    """Whether all have answered, or the call has failed."""
    problem: Refused | None = field(default=None, init=False)
    """Why it has failed; None when it has not."""
    size: int = field(default=0, init=False)
    """The bytes of its message, which gRPC keeps until the call is answered."""
    _asked: dict[int, PartitionKey] = field(default_factory=dict, init=False)

    def ask(self, key: PartitionKey, make: Callable[[ReplyTo], Event]) -> ToInbox:
        """Ask a controller."""
        reply = self.requests.open(self)
        self._asked[reply.request] = key
        return key, make(reply)

    def answered(self, answer: Answer) -> None:
        """Take the answer of one controller."""
        key = self._asked.pop(answer.reply_to.request)
        if isinstance(answer, AnswerRequest):
            self.took(key, answer)
        elif self.problem is None:
            self.problem = self.refusal(answer)
        if not self._asked:
            self._end()

    def fail(self, problem: Refused) -> None:
        """The call ends before it is answered."""
        if not self.done:
            self.problem = self.problem or problem
            self.forget()
            self._end()

    def forget(self) -> None:
        """Nobody waits for the answers any more."""
        for request in self._asked:
            self.requests.forget(request)
        self._asked.clear()

    def took(self, key: PartitionKey, answer: AnswerRequest) -> None:
        """A controller has answered."""

    def refusal(self, answer: Answer) -> Refused:
        """The error of a call that a controller refuses."""
        return Refused(reason_of(answer), code="request-refused")

    def _end(self) -> None:
        self.done = True
        self.changed()


@dataclass(eq=False, repr=False)
class GroupCall(WaitingCall):
    """A change of a group, in all partitions that have it."""

    partitions: int = field(default=0, init=False)
    """How many have made the change."""

    def took(self, key: PartitionKey, answer: AnswerRequest) -> None:
        """A partition has made the change."""
        self.partitions += 1

    def answered(self, answer: Answer) -> None:
        """Take the answer of one controller. A group need not be in every partition."""
        super().answered(answer)
        if self.done and self.partitions:
            self.problem = None


@dataclass(eq=False, repr=False)
class PublishCall(WaitingCall):
    """A publish: its events, divided over partitions."""

    parts: list[tuple[PartitionKey, list[int]]]
    """The places of its events, for each partition."""
    events: Sequence[CloudEvent]
    durability: Durability
    """When the call is answered."""
    not_before: int
    """When the events may be delivered, in milliseconds since 1970 UTC; 0: at once."""
    partitions: int
    """The number of those among which the events are divided; 0 when the client has named one."""
    places: list[tuple[int, int]] = field(init=False)
    """Partition and offset of each event, once the call is done."""

    def __post_init__(self) -> None:
        self.places = [(0, 0)] * len(self.events)

    def begin(self) -> list[ToInbox]:
        """The events for the controllers."""
        records = {key: tuple(self.events[place] for place in places) for key, places in self.parts}
        if self.durability is Durability.RECEIVED:
            reply = self.requests.unanswered()
            return [(key, self._event(given, reply)) for key, given in records.items()]
        return [self.ask(key, functools.partial(self._event, given)) for key, given in records.items()]

    def took(self, key: PartitionKey, answer: AnswerRequest) -> None:
        """Some of the events have offsets."""
        mine = dict(self.parts)[key]
        for written in answer.written:
            for place, where in zip(mine, written.places(), strict=True):
                self.places[place] = where

    def _event(self, records: tuple[CloudEvent, ...], reply: ReplyTo) -> Event:
        if self.not_before:
            return RecordsDelayed(reply, records, self.not_before, self.durability, self.partitions)
        return RecordsPublished(reply, records, self.durability, self.partitions)

    def refusal(self, answer: Answer) -> Refused:
        """Say that the same request may be sent again, also when a part of it was written."""
        found = super().refusal(answer)
        return Refused(
            f"{found.message}; events of other partitions may be written; when the reason is gone, send the same "
            "request again: known events are recognized",
            code="publish-refused",
        )
