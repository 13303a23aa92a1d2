"""Following a topic from an application: ``for item in subscribe("totals", …)``, or ``async for``.

Source: ``docs/pubsub.md``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ssl
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pubsub.items import Epoch, Item, Position
from wallaroo_spark.pubsub.subscribing.settings import Catalog, SubscriptionSettings, TopicDescription
from wallaroo_spark.pubsub.subscribing.subscriber import FIND_SECONDS, Subscriber, no_topic
from wallaroo_spark.pubsub.times import Time
from wallaroo_spark.settings import function_takes_settings

T = TypeVar("T")

CLOSE_SECONDS = 10.0
ATTEMPTS = 2
"""How often the registry is tried at a time: a subscriber has its own limits of how long it tries again."""


class Subscription:
    """Whole epochs of a topic, and how its frontier moves; made by :func:`subscribe`.

    It is an iterator, plain or asynchronous, and a context manager of both kinds; it connects when it is entered or
    first asked for an item. An iteration ends when the topic has, or the subscription is closed. Only one thread, or
    one task, iterates at a time; :meth:`close` may be called from any.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: SubscriptionSettings,
        tls: ssl.SSLContext | None = None,
        close_catalog: Callable[[], None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._tls = tls
        self._close_catalog = close_catalog
        self._subscriber: Subscriber | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._abandon: Any = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def position(self) -> Position | None:
        """The position after the last frontier that was given, for ``resume``; None before the first."""
        return self._settings.resume if self._subscriber is None else self._subscriber.position

    @property
    def upper(self) -> tuple[Time, ...]:
        """The upper frontier of the topic when this began: nothing at or before it is given. Empty at first."""
        return () if self._subscriber is None else self._subscriber.upper

    def __enter__(self) -> Self:
        self._started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._closed:
            raise StopIteration
        subscriber = self._started()
        try:
            item = self._run(subscriber.next())
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Each epoch as a whole, its time and a ``pyarrow.Table``; epochs without rows are passed over.

        Raises :class:`ConfigurationError` when the subscription was made with ``atomic=False``.
        """
        if not self._settings.atomic:
            raise ConfigurationError("epochs() gives whole epochs, and atomic=False asks for parts; leave one of them")
        parts: list[Epoch] = []
        for item in self:
            if parts and not (isinstance(item, Epoch) and item.epoch == parts[0].epoch):
                yield parts[0].epoch, pa.Table.from_batches([part.batch for part in parts])
                parts = []
            if isinstance(item, Epoch):
                parts.append(item)

    def close(self) -> None:
        """End it; may be called again, and from any thread. An iteration that waits ends."""
        with self._lock:
            self._closed = True
            thread, abandon, self._abandon = self._thread, self._abandon, None
        if abandon is not None and abandon.detach() is not None and self._loop is not None:
            _end(self._loop, self._subscriber)
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)
        self._let_go()

    async def aclose(self) -> None:
        """The same for a subscription that is iterated with ``async for``."""
        self._closed = True
        if self._subscriber is not None:
            await self._subscriber.close()
        self._let_go()

    def _let_go(self) -> None:
        close, self._close_catalog = self._close_catalog, None
        if close is not None:
            close()

    def _started(self) -> Subscriber:
        with self._lock:
            if self._closed:
                raise ConfigurationError("this subscription is closed; subscribe anew")
            if self._subscriber is not None:
                return self._subscriber
            self._loop = asyncio.new_event_loop()
            subscriber = self._subscriber = Subscriber(self._catalog, self._settings, self._tls)
            self._thread = threading.Thread(target=_turn, args=(self._loop,), name="wallaroo-subscriber", daemon=True)
            self._thread.start()
            # A caller that breaks out of a loop and drops the subscription leaves no connection behind.
            self._abandon = weakref.finalize(self, _end, self._loop, subscriber)
        try:
            self._run(subscriber.open())
        except BaseException:
            self.close()
            raise
        return subscriber

    async def _started_here(self) -> Subscriber:
        if self._thread is not None:
            raise ConfigurationError("this subscription is iterated with for; go on so, or subscribe anew")
        if self._subscriber is None:
            self._subscriber = Subscriber(self._catalog, self._settings, self._tls)
            try:
                await self._subscriber.open()
            except BaseException:
                await self.aclose()
                raise
        return self._subscriber

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop is closed, by another thread.
            work.close()
            raise concurrent.futures.CancelledError from None
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    """Run a subscriber's loop until it is stopped; callers that wait in it get a cancellation."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        waiting = asyncio.all_tasks(loop)
        for task in waiting:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _end(loop: asyncio.AbstractEventLoop, subscriber: Subscriber | None) -> None:
    """Have a loop end, in good order, without waiting for it; from any thread."""

    async def end() -> None:
        if subscriber is not None:
            await subscriber.close()
        loop.stop()

    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: loop.create_task(end()))


@function_takes_settings(SubscriptionSettings)
def subscribe(settings: SubscriptionSettings) -> Subscription:
    """Follow a topic from the next whole epoch on.

    Iterating raises :class:`PubSubError` when there is no such topic, a publisher refuses or cuts off this subscriber,
    or a partition is lost for good, and :class:`RegistryError` when Redis cannot be reached at first.
    """
    resolved = settings.resolved()
    tls = settings.tls_context()
    catalog, close = _catalog(settings.registry)
    return Subscription(catalog, resolved, tls, close)


def look_up(topic: str, registry: str | Catalog, wait: float = 0.0) -> TopicDescription:
    """The description of a topic; waits for it up to ``wait`` seconds.

    Raises :class:`PubSubError` when it is not there then, and :class:`RegistryError`.
    """
    catalog, close = _catalog(registry)
    until = time.monotonic() + wait
    try:
        while (record := catalog.find(topic)) is None:
            if time.monotonic() >= until:
                raise no_topic(topic, wait)
            time.sleep(min(FIND_SECONDS, max(0.0, until - time.monotonic())))
        return record
    finally:
        close()


def _catalog(registry: str | Catalog) -> tuple[Catalog, Callable[[], None]]:
    if not isinstance(registry, str):
        return registry, lambda: None
    from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

    topics = TopicCatalog(registry, attempts=ATTEMPTS)
    return topics, topics.close
