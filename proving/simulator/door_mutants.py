"""Rules of the doors that are broken on purpose, in histories with doors; see ``proving/simulator/mutants.py``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from wallaroo_spark.doors.client import DoorClient, DoorStream
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.kafka import batches
from wallaroo_spark.doors.kafka.positions import Placed, place
from wallaroo_spark.doors.kafka.record_batch import BatchHead
from wallaroo_spark.doors.kafka.server import KafkaServer
from wallaroo_spark.doors.tickets import Ticket
from wallaroo_spark.doors.unanswered import UnansweredRanges
from wallaroo_spark.protocol import Ack
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.sidecar.given_up import GivenUpRanges


def answers_what_is_accepted() -> AbstractContextManager[Any]:
    """A request is answered when its messages are in the worker's memory."""
    accept = DoorStream._accept

    def at_once(self: DoorStream, reference: int) -> Ticket:
        ticket = accept(self, reference)
        ticket.keep()
        return ticket

    return mock.patch.object(DoorStream, "_accept", at_once)


def answers_what_is_lost() -> AbstractContextManager[Any]:
    """The end of a session answers what waits with success."""
    return mock.patch.object(Ticket, "lose", lambda self, reason: self.keep())


def never_answers_later_requests() -> AbstractContextManager[Any]:
    """Only the first request that waits is answered by a commit."""

    def commit(self: DoorStream, reference: int) -> None:
        self.committed = reference
        if self._waiting and self._waiting[0][0] <= reference:
            self._waiting.pop(0)[2].keep()

    return mock.patch.object(DoorStream, "commit", commit)


def takes_repeated_tokens_for_new() -> AbstractContextManager[Any]:
    """A token that an earlier session has accepted is given a new reference, and so sent again."""

    def send(ground: Ground, instance: str, stream: DoorStream, messages: Any, token: int) -> Ticket:
        return stream.send(messages, max(token, stream.last + 1), step=0)

    return mock.patch("wallaroo_spark.doors.http.tokens.send", send)


def divides_requests() -> AbstractContextManager[Any]:
    """A batch may have a part of the messages of a request, because none of them is unstable."""
    encode = DoorStream._encode

    def stable(self: DoorStream, messages: Any, begin: int, end: int, first: int, step: int, flags: Any) -> None:
        encode(self, messages, begin, end, first, step, type(flags)(0))

    return mock.patch.object(DoorStream, "_encode", stable)


def ignores_acknowledgements() -> AbstractContextManager[Any]:
    """A door's session takes no notice of ACK; only the references of a new session count."""
    take = DoorClient._take
    return mock.patch.object(
        DoorClient, "_take", lambda self, frame: None if isinstance(frame, Ack) else take(self, frame)
    )


def never_gives_up() -> AbstractContextManager[Any]:
    """A batch waits for the messages of a client that never comes back."""
    return mock.patch.object(UnansweredRanges, "due", return_value=iter(()))


def keeps_sessions() -> AbstractContextManager[Any]:
    """The sessions of clients that have gone never end."""
    return mock.patch.object(DoorClient, "busy", True)


def records_nothing() -> AbstractContextManager[Any]:
    """The record of what was given up dies with the driver."""
    init = GivenUpRanges.__init__
    return mock.patch.object(GivenUpRanges, "__init__", lambda self, folder=None: init(self))


def tells_nothing_that_was_given_up() -> AbstractContextManager[Any]:
    """The worker that serves an instance next is not told what was given up."""
    of = GivenUpRanges.of
    asked: list[str] = []

    def once(self: GivenUpRanges, scopes: Collection[str]) -> list[PlannedRange]:
        found = [one for one in of(self, scopes) if str((id(self), one)) not in asked]
        asked.extend(str((id(self), one)) for one in found)
        return found

    return mock.patch.object(GivenUpRanges, "of", once)


def gives_up_before_it_is_recorded() -> AbstractContextManager[Any]:
    """A batch goes on without rows before that is recorded."""
    recorded = Ground._recorded

    def hasty(self: Ground, key: StreamKey, since: int, until: int) -> bool:
        recorded(self, key, since, until)
        return True

    return mock.patch.object(Ground, "_recorded", hasty)


def forgets_the_sequence() -> AbstractContextManager[Any]:
    """A batch of a producer is always new."""

    def new(head: BatchHead, position: int | None) -> Placed:
        found = place(head, position)
        first = (position or 0) + 1
        return Placed(first, first + head.count - 1, repeated=False) if found.repeated else found

    return mock.patch.object(batches, "place", new)


def has_no_fence() -> AbstractContextManager[Any]:
    """A producer whose batches were given up is told that they are committed."""
    return mock.patch.multiple(batches, fence=lambda reference: reference)


def keeps_connections_without_a_session() -> AbstractContextManager[Any]:
    """The first batch of a new stream is refused while the session does not open, and the second one accepted."""
    drop = KafkaServer._drop

    def refuse(self: KafkaServer, one: Any, reason: str) -> None:
        if "later" in reason or "again" in reason:
            return
        drop(self, one, reason)

    return mock.patch.object(KafkaServer, "_drop", refuse)


def answers_behind_what_another_slot_waits_for() -> AbstractContextManager[Any]:
    """A client that has lost a slot hears where the next one is behind a batch that waits for that client."""

    def waits(self: KafkaServer, one: Any) -> bool:
        return self._instance(one) in self._waited_for

    return mock.patch.object(KafkaServer, "_is_waited_for", waits)


DOOR_MUTANTS: Collection[Callable[[], AbstractContextManager[Any]]] = (
    answers_what_is_accepted,
    answers_what_is_lost,
    never_answers_later_requests,
    takes_repeated_tokens_for_new,
    divides_requests,
    ignores_acknowledgements,
    never_gives_up,
    keeps_sessions,
    records_nothing,
    tells_nothing_that_was_given_up,
    gives_up_before_it_is_recorded,
    forgets_the_sequence,
    has_no_fence,
    keeps_connections_without_a_session,
    answers_behind_what_another_slot_waits_for,
)
