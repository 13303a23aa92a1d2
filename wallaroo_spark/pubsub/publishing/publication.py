"""The state of one publisher: which message goes to which subscriber next. Pure, without files, sockets or clocks.

The shell reports committed batches and new subscribers, and takes the next message for each subscriber. Only the
position of a subscriber is kept: its messages are in files, and are read when their turn comes. Source:
``docs/pubsub.md#where-it-comes-from``.
"""

from __future__ import annotations

import hmac
from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.antichains import MaximalAntichain
from wallaroo_spark.pubsub.messages import VERSION, Closed, Snapshot, SubscriberHello, Update, Why
from wallaroo_spark.pubsub.times import Time, batch_of, end_of, same_shape, start_of

SubscriberKey = Hashable
"""The key under which the shell knows a subscriber's connection."""

RETAIN = 64
MAX_SUBSCRIBER_BYTES = 64 << 20
MAX_SUBSCRIBERS = 1024


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch, a file of rows: the ``times`` in it, its ``size`` in bytes, and the source of its rows.

    It becomes one or more :class:`Data` messages, the same ones in the same order whenever it is sent.
    """

    times: tuple[Time, ...]
    size: int
    source: object = None


Outgoing = Snapshot | Update | BatchPart | Closed


@dataclass(frozen=True, order=True)
class _KeptBatch:
    batch: int
    parts: tuple[BatchPart, ...] = field(default=(), compare=False)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass
class _Subscriber:
    """The position of a subscriber: it was sent everything before ``batch``, and ``parts`` parts of that."""

    batch: int
    """The next batch to send."""
    joined: int
    """The next batch when it joined; what was committed before does not count as waiting."""
    snapshot: Snapshot | None
    """The snapshot that it has not been sent yet."""
    closed: Closed | None = None
    """Why it is closed; None while it is served."""
    parts: int = 0
    """Parts of ``batch`` that it was sent."""
    over: bool = False
    """Whether it was sent its last message."""


class Publication:
    """The frontiers of one partition and the places of its subscribers.

    ``identity`` names the topic's history; ``product`` says that times are pairs. The ``retain`` newest batches are
    kept for those who were there and come back. A subscriber is cut off when several batches of together more than
    ``max_subscriber_bytes`` wait behind the one that it is being sent, or when it falls behind what is kept; what was
    published before it came does not count.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        identity: str,
        *,
        product: bool = False,
        cookie: str = "",
        retain: int = RETAIN,
        max_subscriber_bytes: int = MAX_SUBSCRIBER_BYTES,
        max_subscribers: int = MAX_SUBSCRIBERS,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.identity = identity
        self._product = product
        self._cookie = cookie.encode()
        self._retain = max(1, retain)
        self._most_bytes = max_subscriber_bytes
        self._most_subscribers = max_subscribers
        self._next = 0
        self._oldest = 0
        self._kept: list[_KeptBatch] = []
        self._upper = MaximalAntichain()
        self._subscribers: dict[SubscriberKey, _Subscriber] = {}
        self._ending: Closed | None = None

    @property
    def newest(self) -> int | None:
        """The newest batch that is committed; None before the first."""
        return self._next - 1 if self._next else None

    @property
    def oldest(self) -> int:
        """The oldest batch that a subscriber can go on from; files of those before it may be removed."""
        return self._oldest

    @property
    def lower(self) -> tuple[Time, ...]:
        """The lower frontier: the least time that may still come."""
        return (self._start(self._next),)

    @property
    def upper(self) -> tuple[Time, ...]:
        """The upper frontier: the maximal times that were sent, those of all batches no longer kept being one."""
        return self._upper.elements

    @property
    def subscribers(self) -> int:
        """How many are being served."""
        return sum(1 for one in self._subscribers.values() if one.closed is None)

    def begin(
        self, newest: int | None, oldest: int = 0, epochs: Mapping[int, Sequence[BatchPart]] | None = None
    ) -> None:
        """Take the batches committed before the publisher started; call it once, before anyone joins.

        ``epochs`` are the parts of this partition by batch; batches from ``oldest`` to ``newest`` that are not in it
        published nothing here.
        """
        if self._next or self._subscribers:
            raise PubSubError(f"partition {self.partition} of topic {self.topic} has begun; begin a new one")
        self._oldest = max(0, oldest)
        for batch, parts in sorted((epochs or {}).items()):
            if newest is not None and self._oldest <= batch <= newest:
                self._keep(_KeptBatch(batch, tuple(parts)))
        self._next = 0 if newest is None else newest + 1
        self._oldest = min(self._oldest, self._next)
        self._forget()

    def committed(self, batch: int, parts: Sequence[BatchPart] = ()) -> list[SubscriberKey]:
        """A batch is committed; ``parts`` are those of this partition, in a fixed order. Returns whom to serve now.

        Batches that were passed over published nothing. One that is known is passed over itself.
        """
        if batch < self._next:
            return []
        epoch = _KeptBatch(batch, tuple(parts))
        self._keep(epoch)
        self._next = batch + 1
        self._forget()
        for one in self._subscribers.values():
            self._judge(one)
        return list(self._subscribers)

    def join(self, session: SubscriberKey, hello: SubscriberHello) -> None:
        """A subscriber has connected and sent hello; :meth:`take` gives the answer, which may be a refusal."""
        closed = self._refusal(hello)
        if closed is None and hello.resume:
            # It has seen what was sent before that, and is sent the rest: there is nothing to filter.
            batch, snapshot = batch_of(hello.resume[0]), Snapshot(hello.resume, ())
        else:
            batch, snapshot = self._next, Snapshot(self.lower, self.upper)
        self._subscribers[session] = _Subscriber(batch, self._next, None if closed else snapshot, closed)

    def take(self, session: SubscriberKey) -> Outgoing | None:
        """The next thing to send; None when there is nothing now. Behind a :class:`Closed` nothing follows."""
        one = self._subscribers.get(session)
        if one is None or one.over:
            return None
        if one.closed is not None:
            one.over = True
            return one.closed
        if one.snapshot is not None:
            snapshot, one.snapshot = one.snapshot, None
            return snapshot
        if one.batch < self._next:
            return self._following(one)
        if self._ending is not None:
            one.closed, one.over = self._ending, True
            return self._ending
        return None

    def closing(self, session: SubscriberKey) -> Closed | None:
        """Why this one is to be closed whatever it has not taken yet; None while it is served."""
        one = self._subscribers.get(session)
        return one.closed if one else None

    def left(self, session: SubscriberKey) -> None:
        """A connection is gone."""
        self._subscribers.pop(session, None)

    def end(self, why: Why, reason: str) -> list[SubscriberKey]:
        """Send everybody what is committed, then this; nobody is let in any more. Returns whom to serve now."""
        self._ending = Closed(why, reason)
        return list(self._subscribers)

    def validate(self) -> None:
        """Raise AssertionError when something that must always hold does not; for tests."""
        batches = [epoch.batch for epoch in self._kept]
        assert batches == sorted(set(batches))
        assert all(self._oldest <= batch < self._next for batch in batches)
        assert self._next - self._oldest <= self._retain
        assert all(one.batch >= self._oldest for one in self._subscribers.values() if one.closed is None)

    def _start(self, batch: int) -> Time:
        return start_of(batch, product=self._product)

    def _following(self, one: _Subscriber) -> Outgoing:
        place = bisect_left(self._kept, _KeptBatch(one.batch))
        if place == len(self._kept):
            return self._move(one, self._next)
        epoch = self._kept[place]
        if one.parts == len(epoch.parts):
            return self._move(one, epoch.batch + 1)
        part = epoch.parts[one.parts]
        one.parts += 1
        return part

    def _move(self, one: _Subscriber, batch: int) -> Update:
        changes = ((self._start(one.batch), -1), (self._start(batch), 1))
        one.batch, one.parts = batch, 0
        return Update(changes)

    def _keep(self, epoch: _KeptBatch) -> None:
        times = [time for part in epoch.parts for time in part.times]
        for time in times:
            if not same_shape(time, self._start(0)) or batch_of(time) != epoch.batch:
                raise PubSubError(
                    f"topic {self.topic} is published in times like {self._start(epoch.batch)!r}, and batch "
                    f"{epoch.batch} has rows at {time!r}; publish a topic with an epoch column always or never",
                    topic=self.topic,
                    batch=epoch.batch,
                )
        insort(self._kept, epoch)
        for time in times:
            self._upper.insert(time)

    def _forget(self) -> None:
        oldest = self._oldest = max(self._oldest, self._next - self._retain)
        del self._kept[: bisect_left(self._kept, _KeptBatch(oldest))]
        if oldest:
            # A publisher that took another's place does not know which times of old batches were sent.
            kept = [time for time in self._upper if batch_of(time) >= oldest]
            self._upper = MaximalAntichain([*kept, end_of(oldest - 1, product=self._product)])
        for one in self._subscribers.values():
            if one.closed is None and one.batch < oldest:
                reason = f"it is {self._next - one.batch} batches behind, and {self._retain} are kept; read faster"
                one.closed = Closed(Why.SLOW, f"subscriber of topic {self.topic} is too slow: {reason}")

    def _judge(self, one: _Subscriber) -> None:
        """Cut off a subscriber for which too much waits; a single batch may have any size."""
        first = max(one.batch + 1, one.joined)
        waiting = [epoch.size for epoch in self._kept[bisect_left(self._kept, _KeptBatch(first)) :] if epoch.size]
        if one.closed is None and len(waiting) > 1 and sum(waiting) > self._most_bytes:
            reason = f"{sum(waiting)} bytes wait for it, and {self._most_bytes} may; read faster, or raise the limit"
            one.closed = Closed(Why.SLOW, f"subscriber of topic {self.topic} is too slow: {reason}")

    def _refusal(self, hello: SubscriberHello) -> Closed | None:
        if hello.version != VERSION:
            return Closed(Why.REFUSED, f"version {hello.version[:40]!r} is not spoken here, {VERSION!r} is")
        if not hmac.compare_digest(hello.cookie.encode("utf-8", "surrogatepass"), self._cookie):
            return Closed(Why.REFUSED, "the cookie is not the one of this topic")
        here = f"partition {self.partition} of topic {self.topic!r} is served here"
        if (hello.topic, hello.partition) != (self.topic, self.partition):
            return Closed(Why.LATER, f"{here}, not partition {hello.partition} of {hello.topic[:100]!r}")
        if hello.identity is not None and hello.identity != self.identity:
            return Closed(Why.REFUSED, f"topic {self.topic!r} was begun anew, and what was seen of it is of its past")
        if self._ending is not None:
            return self._ending
        if self.subscribers >= self._most_subscribers:
            return Closed(Why.LATER, f"{here}, to {self._most_subscribers} subscribers already, and to no more")
        return self._not_from(hello.resume[0]) if hello.resume else None

    def _not_from(self, resume: Time) -> Closed | None:
        if not same_shape(resume, self._start(0)) or resume != self._start(batch_of(resume)):
            return Closed(Why.REFUSED, f"topic {self.topic!r} has no epoch that begins at {resume!r}")
        if batch_of(resume) < self._oldest:
            return Closed(
                Why.NOT_KEPT,
                f"topic {self.topic!r} keeps what was published from batch {self._oldest} on, and batch "
                f"{batch_of(resume)} is needed; subscribe anew, and have the topic retain more batches",
            )
        return None
