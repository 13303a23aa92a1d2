"""The state of one publisher: the next message for each subscriber, and the files that its subscribers read together.

The state is pure: without files, sockets or clocks. The shell reports committed batches and new subscribers, and takes
the next message for each subscriber. The machine keeps only the position of a subscriber; the rows are in files and are
read when they are sent. A commit wakes every subscriber at once, and all of them need the messages of the same files.
They share one pass over a file, which keeps the newest of its messages in memory. A subscriber that falls behind these
messages starts a pass of its own. Source: ``docs/pubsub/protocol.md#where-it-comes-from``.
"""

from __future__ import annotations

import asyncio
import hmac
from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.messages import VERSION, Closed, Data, Snapshot, SubscriberHello, Update, Why
from wallaroo_spark.pubsub.times import MaximalAntichain, Time, batch_of, end_of, same_shape, start_of

SubscriberKey = Hashable
"""Key of a subscriber's connection, chosen by the shell."""

RETAIN = 64
"""Default number of batches that are retained for subscribers that reconnect.

A choice: about a minute of batches of one second. It bounds disk space.
"""
MAX_SUBSCRIBER_BYTES = 64 << 20
"""Default limit of the bytes that may wait for one subscriber, in more than one batch.

A choice: 16 messages of about 4 MiB. The bytes are in files, so this bounds a subscriber's delay and not memory.
"""
MAX_SUBSCRIBERS = 1024
"""Default limit of the subscribers of one publisher.

A choice. It bounds sockets: the usual limit of open files of a process is 1,024 or more.
"""


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch: one file of rows.

    It becomes one or more :class:`Data` messages, which are the same, in the same order, each time they are sent.
    """

    times: tuple[Time, ...]
    """The times of the rows in the file."""
    size: int
    """Size of the file in bytes."""
    source: object = None
    """The shell's handle of the file; the machine does not use it."""


Outgoing = Snapshot | Update | BatchPart | Closed


@dataclass(frozen=True, order=True)
class _KeptBatch:
    """A retained batch."""

    batch: int
    """Id of the batch."""
    parts: tuple[BatchPart, ...] = field(default=(), compare=False)
    """Its parts of this partition, in the order in which they are sent."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


@dataclass
class _Subscriber:
    """The position of a subscriber: it was sent everything before ``batch``, and ``parts`` parts of ``batch``."""

    batch: int
    """The next batch to send."""
    joined: int
    """The next batch when the subscriber joined. Batches that were committed before do not count as waiting."""
    snapshot: Snapshot | None
    """The snapshot, until it was sent."""
    closed: Closed | None = None
    """The close that ends the connection; None while the subscriber is served."""
    parts: int = 0
    """Number of parts of ``batch`` that were sent."""
    over: bool = False
    """Whether the last message was sent."""


@dataclass(kw_only=True, eq=False, repr=False)
class Publication:
    """The frontiers of one partition and the positions of its subscribers.

    ``identity`` names the topic's history, and ``product`` says that times are pairs. The ``retain`` newest batches are
    kept for subscribers that reconnect. A subscriber is cut off when two or more batches wait behind the one that is
    being sent to it and have more than ``max_subscriber_bytes`` together, or when its next batch is no longer retained.
    Batches that were committed before it joined do not count.
    """

    topic: str = field(kw_only=False)
    partition: int = field(kw_only=False)
    identity: str = field(kw_only=False)
    product: bool = False
    cookie: str = ""
    retain: int = RETAIN
    max_subscriber_bytes: int = MAX_SUBSCRIBER_BYTES
    max_subscribers: int = MAX_SUBSCRIBERS
    oldest: int = field(default=0, init=False)
    """The oldest batch that a subscriber can resume from. Files of earlier batches may be deleted."""
    _next: int = field(default=0, init=False)
    _kept: list[_KeptBatch] = field(default_factory=list, init=False)
    _upper: MaximalAntichain = field(default_factory=MaximalAntichain, init=False)
    _subscribers: dict[SubscriberKey, _Subscriber] = field(default_factory=dict, init=False)
    _ending: Closed | None = field(default=None, init=False)

    @property
    def newest(self) -> int | None:
        """The newest committed batch; None before the first."""
        return self._next - 1 if self._next else None

    @property
    def lower(self) -> tuple[Time, ...]:
        """The lower frontier: the least time that may still be published."""
        return (self._start(self._next),)

    @property
    def upper(self) -> tuple[Time, ...]:
        """The upper frontier: the maximal published times. One time stands for all batches that are not retained."""
        return self._upper.elements

    @property
    def subscribers(self) -> int:
        """Number of subscribers that are served."""
        return sum(1 for one in self._subscribers.values() if one.closed is None)

    def begin(
        self, newest: int | None, oldest: int = 0, epochs: Mapping[int, Sequence[BatchPart]] | None = None
    ) -> None:
        """Take over the batches that were committed before the publisher started. Call it once, before any
        :meth:`join`.

        ``epochs`` maps a batch to its parts of this partition. Batches from ``oldest`` to ``newest`` that are not in it
        published nothing in this partition. Raises :class:`PubSubError` on a second call.
        """
        if self._next or self._subscribers:
            raise PubSubError(
                f"partition {self.partition} of topic {self.topic} has begun already; begin only once",
                code="internal-error",
            )
        self.oldest = max(0, oldest)
        for batch, parts in sorted((epochs or {}).items()):
            if newest is not None and self.oldest <= batch <= newest:
                self._keep(_KeptBatch(batch, tuple(parts)))
        self._next = 0 if newest is None else newest + 1
        self.oldest = min(self.oldest, self._next)
        self._forget()

    def committed(self, batch: int, parts: Sequence[BatchPart] = ()) -> list[SubscriberKey]:
        """A batch was committed. ``parts`` are its parts of this partition, in a fixed order. Returns the subscribers
        to serve.

        Batch numbers that were skipped published nothing. A batch that is known already is ignored.
        """
        if batch < self._next:
            return []
        epoch = _KeptBatch(batch, tuple(parts))
        self._keep(epoch)
        self._next = batch + 1
        self._forget()
        for one in self._subscribers.values():
            self._cut_off_if_slow(one)
        return list(self._subscribers)

    def join(self, session: SubscriberKey, hello: SubscriberHello) -> None:
        """A subscriber has connected and sent its hello. :meth:`take` returns the answer, which may be a refusal."""
        closed = self._refusal(hello)
        if closed is None and hello.resume:
            # A resumed subscriber has all earlier times, so its upper frontier is empty: nothing is filtered out.
            batch, snapshot = batch_of(hello.resume[0]), Snapshot(hello.resume, ())
        else:
            batch, snapshot = self._next, Snapshot(self.lower, self.upper)
        self._subscribers[session] = _Subscriber(batch, self._next, None if closed else snapshot, closed)

    def take(self, session: SubscriberKey) -> Outgoing | None:
        """Return the next message or part to send; None when there is nothing to send now. A :class:`Closed` is the
        last one.
        """
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
        """The close that is due at once, even if other messages wait; None while the subscriber is served."""
        one = self._subscribers.get(session)
        return one.closed if one else None

    def left(self, session: SubscriberKey) -> None:
        """The connection of a subscriber has ended."""
        self._subscribers.pop(session, None)

    def end(self, why: Why, reason: str) -> list[SubscriberKey]:
        """Send all committed batches to every subscriber, then this close. Later hellos are refused. Returns the
        subscribers.
        """
        self._ending = Closed(why, reason)
        return list(self._subscribers)

    def validate(self) -> None:
        """Raise AssertionError when an invariant is violated; for tests."""
        batches = [epoch.batch for epoch in self._kept]
        assert batches == sorted(set(batches))
        assert all(self.oldest <= batch < self._next for batch in batches)
        assert self._next - self.oldest <= self.retain
        assert all(one.batch >= self.oldest for one in self._subscribers.values() if one.closed is None)

    def _start(self, batch: int) -> Time:
        return start_of(batch, product=self.product)

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
                    code="epoch-invalid",
                    topic=self.topic,
                    batch=epoch.batch,
                )
        insort(self._kept, epoch)
        for time in times:
            self._upper.insert(time)

    def _forget(self) -> None:
        oldest = self.oldest = max(self.oldest, self._next - self.retain)
        del self._kept[: bisect_left(self._kept, _KeptBatch(oldest))]
        if oldest:
            # A publisher that replaces another does not know the times of batches that are no longer retained.
            kept = [time for time in self._upper if batch_of(time) >= oldest]
            self._upper = MaximalAntichain([*kept, end_of(oldest - 1, product=self.product)])
        for one in self._subscribers.values():
            if one.closed is None and one.batch < oldest:
                reason = f"it is {self._next - one.batch} batches behind, and {self.retain} are retained; read faster"
                one.closed = Closed(Why.SLOW, f"subscriber of topic {self.topic} is too slow: {reason}")

    def _cut_off_if_slow(self, one: _Subscriber) -> None:
        """Cut off a subscriber when more than the limit waits for it. A single waiting batch may have any size."""
        first = max(one.batch + 1, one.joined)
        waiting = [epoch.size for epoch in self._kept[bisect_left(self._kept, _KeptBatch(first)) :] if epoch.size]
        if one.closed is None and len(waiting) > 1 and sum(waiting) > self.max_subscriber_bytes:
            most = self.max_subscriber_bytes
            reason = f"{sum(waiting)} bytes wait for it, and {most} may; read faster, or raise the limit"
            one.closed = Closed(Why.SLOW, f"subscriber of topic {self.topic} is too slow: {reason}")

    def _refusal(self, hello: SubscriberHello) -> Closed | None:
        if hello.version != VERSION:
            return Closed(Why.REFUSED, f"protocol version {hello.version[:40]!r} is not supported; {VERSION!r} is")
        if not hmac.compare_digest(hello.cookie.encode("utf-8", "surrogatepass"), self.cookie.encode()):
            return Closed(Why.REFUSED, "the cookie is not the one of this topic")
        here = f"partition {self.partition} of topic {self.topic!r} is served here"
        if (hello.topic, hello.partition) != (self.topic, self.partition):
            return Closed(Why.LATER, f"{here}, not partition {hello.partition} of {hello.topic[:100]!r}")
        if hello.identity is not None and hello.identity != self.identity:
            return Closed(Why.REFUSED, f"topic {self.topic!r} has a new history; subscribe without a position")
        if self._ending is not None:
            return self._ending
        if self.subscribers >= self.max_subscribers:
            return Closed(Why.LATER, f"{here}, and has its limit of {self.max_subscribers} subscribers")
        return self._resume_refusal(hello.resume[0]) if hello.resume else None

    def _resume_refusal(self, resume: Time) -> Closed | None:
        if not same_shape(resume, self._start(0)) or resume != self._start(batch_of(resume)):
            return Closed(Why.REFUSED, f"topic {self.topic!r} has no epoch that begins at {resume!r}")
        if batch_of(resume) < self.oldest:
            return Closed(
                Why.NOT_KEPT,
                f"topic {self.topic!r} retains the batches from {self.oldest} on, and batch "
                f"{batch_of(resume)} is needed; subscribe without a position, and start the topic with a larger retain",
            )
        return None


SHARED_BYTES = 8 << 20
"""Bytes of messages that one shared pass keeps in memory. The newest message is always kept, also when it is larger.

A choice: two messages of ``MESSAGE_BYTES`` (4 MiB), so that subscribers may be one message apart. With
``SHARED_READINGS`` it bounds the memory of a publisher's passes to 32 MiB, for any number of subscribers.
"""
SHARED_READINGS = 4
"""Number of shared passes at a time; a subscriber that needs another file reads it alone.

A choice that bounds memory; see ``SHARED_BYTES``.
"""


class Reading:
    """One pass over the messages of a file. ``users`` is the number of subscribers that use the pass."""

    def __init__(self, messages: Iterator[Data]) -> None:
        self.users = 0
        self.first = 0
        """Index of the oldest message that is kept."""
        self._messages = messages
        self._kept: list[asyncio.Future[Data | None]] = []
        """The messages from there on, each of which may be read at the moment; None behind the last message."""
        self._bytes = 0

    @property
    def whole(self) -> bool:
        """Whether a new user can still get every message: all messages that were read are kept, and no read failed."""
        return self.first == 0 and not any(one.done() and one.exception() for one in self._kept)

    async def at(self, index: int) -> Data | None:
        """Return a message that is kept, or the next one; None behind the last message.

        An error of reading the file is raised to every user of this pass.
        """
        if index == self.first + len(self._kept):
            self._kept.append(asyncio.ensure_future(self._read_one()))
        # The shield keeps the read alive when one subscriber stops waiting: others wait for the same message.
        return await asyncio.shield(self._kept[index - self.first])

    async def _read_one(self) -> Data | None:
        found = await asyncio.to_thread(next, self._messages, None)
        if found is not None:
            self._bytes += len(found.payload)
            while self._bytes > SHARED_BYTES and len(self._kept) > 1:
                dropped = self._kept.pop(0).result()
                self._bytes -= len(dropped.payload) if dropped is not None else 0
                self.first += 1
        return found


class Readings:
    """The passes over files that the subscribers of one publisher share. The object belongs to one event loop."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, Reading] = {}

    async def messages(self, key: Hashable, read: Callable[[], Iterator[Data]]) -> AsyncIterator[Data]:
        """Iterate over the messages of the file ``key``, which ``read`` opens. Raises the errors of reading it."""
        reading, index = self._join(key, read), 0
        try:
            while index >= reading.first:
                message = await reading.at(index)
                if message is None:
                    return
                index += 1
                yield message
        finally:
            reading.users -= 1
        alone = islice(read(), index, None)
        while (found := await asyncio.to_thread(next, alone, None)) is not None:
            yield found

    def _join(self, key: Hashable, read: Callable[[], Iterator[Data]]) -> Reading:
        reading = self._shared.get(key)
        if reading is None or not reading.whole:
            reading = Reading(read())
            self._share(key, reading)
        reading.users += 1
        return reading

    def _share(self, key: Hashable, reading: Reading) -> None:
        """Offer a pass to other subscribers if there is room, or if removing an unused pass makes room."""
        for other in [other for other, known in self._shared.items() if not known.users]:
            if other == key or len(self._shared) >= SHARED_READINGS:
                del self._shared[other]
        if key not in self._shared and len(self._shared) < SHARED_READINGS:
            self._shared[key] = reading
