"""Following a topic from an application: ``for item in subscribe("totals", …)``, or ``async for``.

Source: ``docs/pubsub.md``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ssl
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import pyarrow as pa
from tenacity import Retrying

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.event_loop import LoopThread
from wallaroo_spark.pubsub.subscribing.settings import Catalog, SubscriptionSettings, TopicDescription
from wallaroo_spark.pubsub.subscribing.subscriber import Subscriber, find_topic, until_found
from wallaroo_spark.pubsub.times import Epoch, Item, Position, Time
from wallaroo_spark.settings import function_takes_settings

T = TypeVar("T")

CLOSE_SECONDS = 10.0
"""Limit of the wait for the subscriber's thread in :meth:`Subscription.close`, in seconds. A choice."""
ATTEMPTS = 2
"""Attempts of one registry call. Few, because the subscriber itself retries for ``wait`` or ``lost_after`` seconds."""


@dataclass(eq=False, repr=False)
class Subscription:
    """The whole epochs of a topic and the moves of its frontier; made by :func:`subscribe`.

    It is an iterator and a context manager, both synchronous and asynchronous. It connects on entry or on the first
    iteration. The iteration ends when the topic ends or the subscription is closed. Only one thread or task may iterate
    at a time; any thread may call :meth:`close`.
    """

    _catalog: Catalog
    _settings: SubscriptionSettings
    _tls: ssl.SSLContext | None
    _close_catalog: Callable[[], None] | None
    _subscriber: Subscriber | None = field(default=None, init=False)
    _thread: LoopThread | None = field(default=None, init=False)
    _abandon: Any = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def position(self) -> Position | None:
        """The position after the last delivered frontier, for ``resume``; None before the first."""
        return self._settings.resume if self._subscriber is None else self._subscriber.position

    @property
    def upper(self) -> tuple[Time, ...]:
        """Upper frontier of the topic when the subscription began. Rows at or before it are dropped. Empty at first."""
        return () if self._subscriber is None else self._subscriber.upper

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        subscriber = self._started()
        assert self._thread is not None
        try:
            item = self._thread.call(subscriber.next)
        except concurrent.futures.CancelledError:
            item = None
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):
                self.close()
            raise
        if item is None:
            self.close()
            raise StopIteration
        return item

    async def __aenter__(self) -> Self:
        await self._started_here()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._closed:
            raise StopAsyncIteration
        subscriber = await self._started_here()
        try:
            item = await subscriber.next()
        except Exception:
            await self.aclose()
            raise
        if item is None:
            await self.aclose()
            raise StopAsyncIteration
        return item

    def epochs(self) -> Iterator[tuple[Time, pa.Table]]:
        """Iterate over whole epochs as (time, ``pyarrow.Table``). Epochs without rows are skipped.

        Raises :class:`ConfigurationError` when the subscription was made with ``atomic=False``.
        """
        if not self._settings.atomic:
            raise ConfigurationError(
                "epochs() gives whole epochs, and atomic=False asks for parts; use one of them",
                code="subscription-misused",
            )
        parts: list[Epoch] = []
        for item in self:
            if parts and not (isinstance(item, Epoch) and item.epoch == parts[0].epoch):
                yield parts[0].epoch, pa.Table.from_batches([part.batch for part in parts])
                parts = []
            if isinstance(item, Epoch):
                parts.append(item)

    def close(self) -> None:
        """Close the subscription; may be called again, from any thread. A waiting iteration ends."""
        with self._lock:
            self._closed = True
            thread, abandon, self._abandon = self._thread, self._abandon, None
        if abandon is not None and abandon.detach() is not None and thread is not None:
            _end(thread, self._subscriber)
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        self._release_catalog()

    async def aclose(self) -> None:
        """Close a subscription that is iterated with ``async for``."""
        self._closed = True
        if self._subscriber is not None:
            await self._subscriber.close()
        self._release_catalog()

    def _release_catalog(self) -> None:
        close, self._close_catalog = self._close_catalog, None
        if close is not None:
            close()

    def _started(self) -> Subscriber:
        with self._lock:
            if self._closed:
                raise ConfigurationError("this subscription is closed; subscribe anew", code="subscription-misused")
            if self._subscriber is not None:
                return self._subscriber
            thread = self._thread = LoopThread("wallaroo-subscriber")
            subscriber = self._subscriber = Subscriber(self._catalog, self._settings, self._tls)
            # Closes the connections when a caller leaves its loop and drops the subscription without closing it.
            self._abandon = weakref.finalize(self, _end, thread, subscriber)
        try:
            thread.call(subscriber.open)
        except BaseException:
            self.close()
            raise
        return subscriber

    async def _started_here(self) -> Subscriber:
        if self._thread is not None:
            raise ConfigurationError(
                "this subscription is iterated with for; continue with for, or subscribe anew",
                code="subscription-misused",
            )
        if self._subscriber is None:
            self._subscriber = Subscriber(self._catalog, self._settings, self._tls)
            try:
                await self._subscriber.open()
            except BaseException:
                await self.aclose()
                raise
        return self._subscriber


def _end(thread: LoopThread, subscriber: Subscriber | None) -> None:
    """Ask a subscriber's thread to close its connections and end; does not wait. Any thread may call it."""

    async def close() -> None:
        if subscriber is not None:
            await subscriber.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    thread.stop_after(close)


@function_takes_settings(SubscriptionSettings)
def subscribe(settings: SubscriptionSettings) -> Subscription:
    """Follow a topic from the next whole epoch on.

    Iterating raises :class:`PubSubError` when the topic does not run, a publisher refuses or cuts off this subscriber,
    or a partition is lost for longer than ``lost_after``, and :class:`RegistryError` when Redis cannot be reached at
    first.
    """
    resolved = settings.resolved()
    tls = settings.tls_context()
    catalog, close = _catalog(settings.registry)
    return Subscription(catalog, resolved, tls, close)


def look_up(topic: str, registry: str | Catalog, wait: float = 0.0) -> TopicDescription:
    """Return the description of a topic; waits up to ``wait`` seconds until it runs.

    Raises :class:`PubSubError` when it does not run by then, and :class:`RegistryError` when the registry does not
    answer by then.
    """
    catalog, close = _catalog(registry)
    try:
        return Retrying(**until_found(wait))(find_topic, catalog, topic, wait)
    finally:
        close()


def _catalog(registry: str | Catalog) -> tuple[Catalog, Callable[[], None]]:
    if not isinstance(registry, str):
        return registry, lambda: None
    from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

    topics = TopicCatalog(registry, attempts=ATTEMPTS)
    return topics, topics.close
