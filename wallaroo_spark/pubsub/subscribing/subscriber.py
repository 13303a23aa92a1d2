"""A subscriber's connections on asyncio, one for each partition, which are re-established when they are lost.

Source: ``docs/pubsub/protocol.md#where-it-comes-from``.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from wallaroo_spark.errors import ConfigurationError, PubSubError, RegistryError, WallarooError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.pubsub.messages import VERSION, Closed, Data, Snapshot, SubscriberHello, Update, Why, unpack_rows
from wallaroo_spark.pubsub.subscribing.merger import Delivered, MergedItem, Merger
from wallaroo_spark.pubsub.subscribing.partition_link import LinkLost, PartitionLink
from wallaroo_spark.pubsub.subscribing.settings import Catalog, SubscriptionSettings, TopicDescription
from wallaroo_spark.pubsub.times import Epoch, Frontier, Item, Position, Time, same_shape, start_of

log = one_line("wallaroo_spark.pubsub")

FIND_SECONDS = 0.2
"""Seconds between two lookups of a topic that does not run yet. A choice: five Redis calls a second."""
LOOK_SECONDS = 2.0
"""Seconds between two checks whether a partition has moved to another publisher.

A choice: it bounds the time that a subscriber stays with a publisher which hangs and was replaced.
"""
MAX_WAITING_BYTES = 16 << 20
"""Limit in bytes of the items that the application has not taken; above it the subscriber stops reading.

A choice: four messages of about 4 MiB, so that the next ones arrive while the application works.
"""
ITEM_BYTES = 256
"""Bytes that an item counts in addition to its rows.

A choice, about the memory of the Python objects of a frontier, so that frontiers alone reach the limit too.
"""


def find_topic(catalog: Catalog, topic: str, wait: float) -> TopicDescription:
    """The description of a topic. It blocks.

    Raises :class:`PubSubError` when the topic does not run, after ``wait`` seconds, and :class:`RegistryError`.
    """
    found = catalog.find(topic)
    if found is None:
        waited = f", after {wait:g} seconds" if wait else ""
        raise PubSubError(
            f"topic {topic!r} has no publisher in this registry{waited}; check the name and the registry, or wait for "
            "it longer",
            code="topic-not-found",
            topic=topic,
        )
    return found


def until_found(wait: float) -> dict[str, Any]:
    """The arguments of tenacity's retrying for :func:`find_topic`: again and again for ``wait`` seconds."""
    return {
        "retry": retry_if_exception_type((PubSubError, RegistryError)),
        "stop": stop_after_delay(wait),
        "wait": wait_fixed(FIND_SECONDS),
        "reraise": True,
    }


@dataclass(eq=False, repr=False)
class Subscriber:
    """Follows all partitions of a topic. It belongs to one event loop.

    :meth:`open` looks up the topic, :meth:`next` returns one item after the other, :meth:`close` closes the
    connections.
    """

    catalog: Catalog
    settings: SubscriptionSettings
    tls: ssl.SSLContext | None = None
    max_waiting_bytes: int = MAX_WAITING_BYTES
    position: Position | None = field(init=False)
    """Behind the last frontier that was returned; where to resume before the first."""
    _record: TopicDescription | None = field(default=None, init=False)
    _merger: Merger = field(default_factory=partial(Merger, 1), init=False)
    _links: list[PartitionLink] = field(default_factory=list, init=False)
    _items: deque[MergedItem] = field(default_factory=deque, init=False)
    _waiting: int = field(default=0, init=False)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _failure: BaseException | None = field(default=None, init=False)
    _over: bool = field(default=False, init=False)
    _tasks: BackgroundTasks = field(init=False)
    _waking: asyncio.Future[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.position = self.settings.resume
        self._tasks = BackgroundTasks(self._task_ended)

    @property
    def frontier(self) -> tuple[Time, ...] | None:
        """The lower frontier of the received data; None before all snapshots have arrived."""
        return self._merger.frontier

    @property
    def upper(self) -> tuple[Time, ...]:
        """The upper frontier of the topic when the subscription began. Rows at or before it are not delivered."""
        return self._merger.upper

    async def open(self) -> None:
        """Look up the topic and begin to connect to its publishers. Call it once.

        Raises :class:`PubSubError` when the topic does not run within ``wait`` seconds, :class:`RegistryError`, and
        :class:`ConfigurationError` when ``beyond`` or ``resume`` does not have the shape of the topic's times.
        """
        settings = self.settings
        search = AsyncRetrying(**until_found(settings.wait))
        record: TopicDescription
        record = await search(asyncio.to_thread, find_topic, self.catalog, settings.topic, settings.wait)
        self._record = record
        self._check(record)
        self._merger = Merger(
            record.partitions,
            atomic=settings.atomic,
            beyond=() if settings.beyond == () else (settings.beyond,),
            resume=() if settings.resume is None else (settings.resume.time,),
            max_held_bytes=settings.max_held_bytes,
        )
        self._links = [
            PartitionLink(self.catalog, settings, partition, self.tls) for partition in range(record.partitions)
        ]
        for link in self._links:
            self._tasks.start(self._follow(link))
        self._tasks.start(self._look())

    async def next(self) -> Item | None:
        """Wait for the next item and return it; None when the topic has ended or the subscriber was closed.

        Raises :class:`PubSubError` when a partition is lost for longer than ``lost_after`` or refuses the subscriber;
        all earlier items are returned first. Raises :class:`RemoteProtocolError` for rows that cannot be decoded.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._items or self._failure or self._over)
            if not self._items:
                if self._failure is not None:
                    raise self._failure
                return None
            item = self._items.popleft()
            self._waiting -= _weight(item)
            self._changed.notify_all()
        if isinstance(item, Frontier):
            if len(item.frontier) == 1 and self._record is not None:
                self.position = Position(self._record.identity, item.frontier[0])
            return item
        return Epoch(item.time, item.partition, unpack_rows(item.payload))

    async def close(self) -> None:
        """Close all connections; may be called again. A caller that waits in :meth:`next` gets None."""
        self._over = True
        self._items.clear()
        self._tasks.cancel()
        await self._tasks.wait()
        async with self._changed:
            self._changed.notify_all()

    def _check(self, record: TopicDescription) -> None:
        settings, start = self.settings, start_of(0, product=record.product)
        given: dict[str, Time] = {} if settings.beyond == () else {"beyond": settings.beyond}
        if settings.resume is not None:
            given["resume"] = settings.resume.time
        for option, at in given.items():
            if not same_shape(at, start):
                raise ConfigurationError(
                    f"option {option}: topic {settings.topic!r} has times like {start!r}, and {at!r} is none of them",
                    code="epoch-invalid",
                    option=option,
                )
        if settings.resume is not None and settings.resume.identity != record.identity:
            raise PubSubError(
                f"topic {settings.topic!r} has a new history since the position to resume was taken; "
                "subscribe without a position",
                code="topic-started-anew",
                topic=settings.topic,
            )

    async def _follow(self, link: PartitionLink) -> None:
        """Keep the connection to one partition until the partition has ended."""
        while True:
            try:
                await link.connect(self._hello(link.partition))
                if self._closed(link, await self._read(link)):
                    return
            except LinkLost as gone:
                link.trouble(str(gone))
            finally:
                await link.hang_up()
            self._merger.lost(link.partition)
            await self._wake()
            await link.pause()

    def _hello(self, partition: int) -> SubscriberHello:
        settings, record = self.settings, self._record
        assert record is not None
        resume = self._merger.resumes_at(partition)
        return SubscriberHello(
            VERSION, settings.cookie, settings.topic, partition, settings.name, record.identity, resume
        )

    async def _read(self, link: PartitionLink) -> Closed:
        """Process the messages of a publisher until it closes the connection."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._room(link.partition))
            for message in await link.messages():
                if isinstance(message, Closed):
                    return message
                if not isinstance(message, Snapshot | Update | Data):
                    raise LinkLost("the publisher sent a hello, which only subscribers send")
                before = self._merger.held_bytes
                items = link.judged(partial(self._merger.received, link.partition, message))
                if isinstance(message, Update):
                    link.progressed()
                if items or self._merger.held_bytes < before:
                    await self._give(items)

    def _room(self, partition: int) -> bool:
        return self._waiting <= self.max_waiting_bytes and self._merger.may_read(partition)

    async def _give(self, items: list[Any]) -> None:
        async with self._changed:
            self._items.extend(items)
            self._waiting += sum(map(_weight, items))
            self._changed.notify_all()

    def _closed(self, link: PartitionLink, closed: Closed) -> bool:
        """Whether a close ends the partition. Raises :class:`PubSubError` when a retry cannot succeed."""
        if closed.why is Why.ENDED and not self.settings.reopen:
            self._merger.ended(link.partition)
            log.info("topic %s, partition %d has ended: %s", self.settings.topic, link.partition, closed.reason)
            return True
        if closed.why in (Why.LATER, Why.ENDED):
            link.trouble(closed.reason)
            return False
        code = "epochs-not-kept" if closed.why is Why.NOT_KEPT else "subscriber-refused"
        raise PubSubError(
            f"topic {self.settings.topic!r}, partition {link.partition} at {link.address}: {closed.reason}",
            code=code,
            topic=self.settings.topic,
            partition=link.partition,
            address=link.address,
            why=str(closed.why),
        )

    async def _look(self) -> None:
        """Close connections to publishers that were replaced, because a publisher that hangs does not close them
        itself.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                served = await asyncio.to_thread(self.catalog.served, self.settings.topic)
            except WallarooError as error:
                log.debug("topic %s cannot be looked up: %s", self.settings.topic, error)
                continue
            for link in self._links:
                place = served.get(link.partition)
                link.seen_at(place.address if place is not None else "")

    def _task_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self._failure = self._failure or error
        if error is not None or (self._merger.finished and not self._over):
            self._over = True
            self._tasks.cancel()
            # asyncio keeps only weak references to tasks, so this one prevents collection before the task has run.
            self._waking = asyncio.ensure_future(self._wake())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _weight(item: MergedItem) -> int:
    """The bytes that an item counts towards the limit of waiting items.

    Frontiers count too, so that they cannot accumulate without limit while the application takes no items.
    """
    return ITEM_BYTES + (len(item.payload) if isinstance(item, Delivered) else 0)
