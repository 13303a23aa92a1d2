"""Rules of the two machines broken on purpose, one at a time: the histories must find each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from wallaroo_spark.pubsub.messages import Snapshot, SubscriberHello, Why
from wallaroo_spark.pubsub.publishing.publication import Publication
from wallaroo_spark.pubsub.subscribing.merger import Delivered, Merger
from wallaroo_spark.pubsub.times import Frontier, MaximalAntichain, MinimalAntichain, at_or_before, batch_of, minimal

Mutant = Callable[[], AbstractContextManager[Any]]


def does_not_filter() -> AbstractContextManager[Any]:
    """A subscriber takes everything."""
    return mock.patch.object(Merger, "_dropped", return_value=False)


def does_not_merge_the_filter() -> AbstractContextManager[Any]:
    """The filter is that of the last snapshot alone."""
    snapshot = Merger._snapshot

    def alone(self: Merger, partition: int, one: Any, message: Snapshot) -> Any:
        if one.own is None:
            self._filter = MaximalAntichain()
        return snapshot(self, partition, one, message)

    return mock.patch.object(Merger, "_snapshot", alone)


def drops_passed_filters_before_the_start() -> AbstractContextManager[Any]:
    """Rows from before the last snapshot are filtered by the elements that the frontier has not passed by then."""
    begin = Merger._begin

    def late(self: Merger) -> Any:
        self._filter.drop_passed(self._lower)
        return begin(self)

    return mock.patch.object(Merger, "_begin", late)


def does_not_filter_data_before_the_last_snapshot() -> AbstractContextManager[Any]:
    """Rows from before the last snapshot are not filtered."""

    def begin(self: Merger) -> Any:
        self._began = True
        return self._moved([(time, 1) for time in self._lower.elements])

    return mock.patch.object(Merger, "_begin", begin)


def drops_filters_early() -> AbstractContextManager[Any]:
    """An element of the filter goes when the frontier reaches it, not when it has passed it."""

    def early(self: MaximalAntichain, lower: MinimalAntichain) -> None:
        self._elements = [one for one in self._elements if any(at_or_before(e, one) and e != one for e in lower)]

    return mock.patch.object(MaximalAntichain, "drop_passed", early)


def filters_forever() -> AbstractContextManager[Any]:
    """A subscriber that has begun puts every snapshot into its filter, those of publishers that are back as well."""
    snapshot = Merger._snapshot

    def more(self: Merger, partition: int, one: Any, message: Snapshot) -> Any:
        for time in message.lower:
            self._filter.insert(time)
        return snapshot(self, partition, one, message)

    return mock.patch.object(Merger, "_snapshot", more)


def does_not_hold_back() -> AbstractContextManager[Any]:
    """Data is let through as it comes."""
    data = Merger._data

    def through(self: Merger, partition: int, one: Any, message: Any) -> Any:
        before = len(one.held)
        items = data(self, partition, one, message)
        if self._began and len(one.held) > before:
            self._hold(one, one.held[:-1])
            items.append(Delivered(message.time, partition, message.payload))
        return items

    return mock.patch.object(Merger, "_data", through)


def tells_the_frontier_first() -> AbstractContextManager[Any]:
    """The frontier is said to have passed an epoch before that is delivered."""
    moved = Merger._moved

    def early(self: Merger, changes: Any) -> Any:
        return sorted(moved(self, changes), key=lambda item: not isinstance(item, Frontier))

    return mock.patch.object(Merger, "_moved", early)


def keeps_rows_of_a_lost_connection() -> AbstractContextManager[Any]:
    """Rows of an incomplete epoch stay when the connection is lost, although the publisher sends them again."""

    def lost(self: Merger, partition: int) -> None:
        one = self._partitions[partition]
        one.seen, one.connected = 0, False

    return mock.patch.object(Merger, "lost", lost)


def throws_away_what_was_whole() -> AbstractContextManager[Any]:
    """With a connection goes everything that it brought and that waits for other partitions."""
    lost = Merger.lost

    def all_of_it(self: Merger, partition: int) -> None:
        self._hold(self._partitions[partition], [])
        lost(self, partition)

    return mock.patch.object(Merger, "lost", all_of_it)


def forgets_delivered_rows_of_a_lost_connection() -> AbstractContextManager[Any]:
    """A subscriber without atomic epochs delivers rows again that the publisher sends again."""
    lost = Merger.lost

    def forget(self: Merger, partition: int) -> None:
        self._partitions[partition].seen = self._partitions[partition].repeated = 0
        lost(self, partition)

    return mock.patch.object(Merger, "lost", forget)


def does_not_resume() -> AbstractContextManager[Any]:
    """A subscriber that reconnects begins with the next batch, and treats it as the missed one."""
    received = Merger._snapshot

    def from_the_next(self: Merger, partition: int, one: Any, message: Snapshot) -> Any:
        if one.own is not None:
            self._lower.update([(time, -1) for time in one.own])
            self._lower.update([(time, 1) for time in message.lower])
            one.own, one.connected = MinimalAntichain(message.lower), True
            return []
        return received(self, partition, one, message)

    resume = mock.patch.object(Merger, "resumes_at", return_value=())
    patched = mock.patch.object(Merger, "_snapshot", from_the_next)
    return _both(resume, patched)


def resumes(by: int) -> Mutant:
    """A publisher that goes on from another batch than it was asked."""

    def patch() -> AbstractContextManager[Any]:
        join = Publication.join

        def beside(self: Publication, session: Any, hello: SubscriberHello) -> None:
            join(self, session, hello)
            if hello.resume:
                self._subscribers[session].batch = max(0, batch_of(hello.resume[0]) + by)

        return mock.patch.object(Publication, "join", beside)

    return patch


def replays_all_as_one_epoch_less() -> AbstractContextManager[Any]:
    """A subscriber that is behind is moved past the next batch without its rows."""
    following = Publication._following

    def short(self: Publication, one: Any) -> Any:
        return self._move(one, one.batch + 1) if one.batch + 1 < self._next else following(self, one)

    return mock.patch.object(Publication, "_following", short)


def moves_on_before_the_last_part() -> AbstractContextManager[Any]:
    """The frontier moves when one part of a batch is still to be sent."""
    following = Publication._following

    def early(self: Publication, one: Any) -> Any:
        epoch = next((epoch for epoch in self._kept if epoch.batch >= one.batch), None)
        if epoch is not None and one.parts == len(epoch.parts) - 1 and one.parts:
            return self._move(one, epoch.batch + 1)
        return following(self, one)

    return mock.patch.object(Publication, "_following", early)


def has_no_upper_frontier() -> AbstractContextManager[Any]:
    """A publisher's snapshot has an empty upper frontier."""
    return mock.patch.object(Publication, "upper", property(lambda self: ()))


def forgets_batches_of_its_predecessor() -> AbstractContextManager[Any]:
    """A new publisher's upper frontier begins empty."""
    begin = Publication.begin

    def empty(self: Publication, *arguments: Any) -> None:
        begin(self, *arguments)
        self._upper = MaximalAntichain()

    return mock.patch.object(Publication, "begin", empty)


def forgets_times_that_are_not_retained() -> AbstractContextManager[Any]:
    """The upper frontier has only the times of retained batches."""
    forget = Publication._forget

    def only(self: Publication) -> None:
        forget(self)
        self._upper = MaximalAntichain(time for time in self._upper if batch_of(time) >= self.oldest)

    return mock.patch.object(Publication, "_forget", only)


def resumes_from_a_deleted_batch() -> AbstractContextManager[Any]:
    """A subscriber that needs a deleted batch is sent the batches after it."""
    refusal = Publication._refusal

    def lenient(self: Publication, hello: SubscriberHello) -> Any:
        closed = refusal(self, hello)
        return None if closed is not None and closed.why is Why.NOT_KEPT else closed

    return mock.patch.object(Publication, "_refusal", lenient)


def counts_each_time_once() -> AbstractContextManager[Any]:
    """The merged frontier knows no multiplicities."""

    def update(self: MinimalAntichain, changes: Any) -> Any:
        counts = dict.fromkeys(self._counts, 1)
        for time, change in changes:
            counts[time] = max(0, min(1, counts.get(time, 0) + change))
        before, after = self._elements, minimal([time for time, count in counts.items() if count])
        self._counts = Counter({time: count for time, count in counts.items() if count})
        self._elements = after
        gone = [(time, -1) for time in before if time not in after]
        return gone + [(time, 1) for time in after if time not in before]

    return mock.patch.object(MinimalAntichain, "update", update)


def waits_for_nobody() -> AbstractContextManager[Any]:
    """A subscriber stops reading from every partition when it holds much, those included that it waits for."""
    return mock.patch.object(Merger, "may_read", lambda self, partition: self.held_bytes <= self.max_held_bytes)


def _both(*patches: Any) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


resumes_one_late, resumes_one_early = resumes(1), resumes(-1)

MUTANTS: dict[str, Mutant] = {
    "resumes_one_late": resumes_one_late,
    "resumes_one_early": resumes_one_early,
    **{
        mutant.__name__: mutant
        for mutant in (
            does_not_filter,
            does_not_merge_the_filter,
            drops_passed_filters_before_the_start,
            does_not_filter_data_before_the_last_snapshot,
            drops_filters_early,
            filters_forever,
            does_not_hold_back,
            tells_the_frontier_first,
            keeps_rows_of_a_lost_connection,
            throws_away_what_was_whole,
            forgets_delivered_rows_of_a_lost_connection,
            does_not_resume,
            replays_all_as_one_epoch_less,
            moves_on_before_the_last_part,
            has_no_upper_frontier,
            forgets_batches_of_its_predecessor,
            forgets_times_that_are_not_retained,
            resumes_from_a_deleted_batch,
            counts_each_time_once,
            waits_for_nobody,
        )
    },
}
