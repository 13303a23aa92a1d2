"""The client for plain scripts: the same methods without ``await``.

    with Client("gateway:7200") as client:
        client.publish("shop/orders", Event("shop.order.created", {"order": 17}))

An event loop runs in a thread of its own; every call runs there while the caller waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from wallaroo_spark.client.bulk.publishing import BulkPublishing, OnRefused, published_events_in_thread
from wallaroo_spark.client.bulk.window import PublishedEvent
from wallaroo_spark.client.calls import ServedCall
from wallaroo_spark.client.client import AsyncClient
from wallaroo_spark.client.events.event import Event
from wallaroo_spark.client.members.deliveries import (
    ClientTransaction,
    EventPlace,
    StageWork,
    StreamDelivery,
    WrittenEvents,
)
from wallaroo_spark.client.members.membership import Membership
from wallaroo_spark.client.requests import ApplicationDescription
from wallaroo_spark.client.settings import ClientSettings
from wallaroo_spark.client.stages import StageFunction, stages_of
from wallaroo_spark.errors import LocalProtocolError, one_line
from wallaroo_spark.loop_thread import LoopThread
from wallaroo_spark.settings import takes_settings

log = one_line(logging.getLogger("wallaroo_spark.client"))
T = TypeVar("T")
D = TypeVar("D", StreamDelivery, StageWork)


class _ClientThread(LoopThread):
    """The thread of one client. It refuses calls after its end, calls from itself, and calls from a forked process."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        super().__init__(name)

    def stop(self) -> None:
        """As :meth:`LoopThread.stop`; nothing in a fork, which has no such thread."""
        if os.getpid() == self._process:
            super().stop()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """As :meth:`LoopThread.call`. Raises :class:`LocalProtocolError` when the client is closed, or the caller is
        this thread, or a fork of the process that made the client."""
        if os.getpid() != self._process:
            raise LocalProtocolError(
                f"this client was made by process {self._process}, and process {os.getpid()} is a fork of it, without "
                "its thread and its connection; make a Client after the fork",
                code="client-closed",
            )
        if self.stopped or self.inside:
            why = "the client is closed" if self.stopped else "this is called from the client's thread"
            raise LocalProtocolError(f"{why}; a Client serves other threads while it is open", code="client-closed")
        return super().call(work)


class Client:
    """A client with blocking methods; several threads may use it. The methods raise as those of :class:`AsyncClient`
    do, which also documents them in full."""

    @takes_settings(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        """The settings:"""
        self._thread = _ClientThread("wallaroo-client")
        try:
            self._client = self._thread.read(lambda: AsyncClient(**vars(settings)))
        except BaseException:
            self._thread.stop()
            raise

    def __repr__(self) -> str:
        return f"<{repr(self._client)[6:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def gateway(self) -> str:
        """As :attr:`AsyncClient.gateway`."""
        return self._client.gateway

    def publish(
        self,
        stream: str,
        *events: Event,
        partition: int | None = None,
        durability: str = "committed",
        key: str | None = None,
        delay: float | timedelta | datetime | None = None,
        timeout: float | None = None,
    ) -> list[EventPlace]:
        """As :meth:`AsyncClient.publish`."""
        return self._thread.call(
            lambda: self._client.publish(
                stream, *events, partition=partition, durability=durability, key=key, delay=delay, timeout=timeout
            )
        )

    def publish_many(
        self,
        stream: str,
        events: Iterable[Event],
        *,
        partition: int | None = None,
        durability: str = "committed",
        key: str | None = None,
        delay: float | timedelta | datetime | None = None,
        timeout: float | None = None,
        batch: int = 500,
        on_refused: OnRefused | None = None,
    ) -> Iterator[PublishedEvent]:
        """As :meth:`AsyncClient.publish_many`. ``events`` is iterated over in the caller's thread."""
        news = threading.Event()
        make = self._client._bulk_maker(
            stream, events, (partition, durability, delay), key, timeout, batch, on_refused, blocking=True
        )
        return self._published(make, events, news)

    def _published(
        self, make: Callable[[Callable[[], None]], BulkPublishing], events: Iterable[Event], news: threading.Event
    ) -> Iterator[PublishedEvent]:
        bulk, task = self._thread.read(lambda: _begun(make(news.set)))
        try:
            yield from published_events_in_thread(bulk, events, news)
        finally:
            if not self._thread.stopped:
                self._thread.call(lambda: _cancelled(task))

    def consume(
        self,
        stream: str,
        *,
        group: str | None = None,
        start: str | int = "latest",
        durable: bool | None = None,
        max_events: int = 100,
        concurrency: int = 1,
        partitions: tuple[int, ...] | list[int] = (),
    ) -> BlockingMembership[StreamDelivery]:
        """As :meth:`AsyncClient.consume`: an iterator of deliveries, to be acked with ``with delivery:``."""
        member = self._thread.read(
            lambda: self._client.consume(
                stream,
                group=group,
                start=start,
                durable=durable,
                max_events=max_events,
                concurrency=concurrency,
                partitions=partitions,
            )
        )
        return BlockingMembership(member, self._thread)

    def stage(self, pipeline: str, stage: str, *, concurrency: int = 1) -> BlockingMembership[StageWork]:
        """As :meth:`AsyncClient.stage`: an iterator of works, to be acked with their outputs."""
        member = self._thread.read(lambda: self._client.stage(pipeline, stage, concurrency=concurrency))
        return BlockingMembership(member, self._thread)

    def work(self, *stages: StageFunction) -> None:
        """As :meth:`AsyncClient.work`. It returns after :meth:`stop`, which another thread or a signal handler calls.

        In the main thread, SIGINT and SIGTERM end it too, with one line on standard error.
        """
        with _signals(self.stop):
            self._thread.call(lambda: self._client.work(*stages))

    def stop(self) -> None:
        """Let :meth:`work` and :meth:`serve` end. It does not wait."""
        self._thread._soon(self._client.stop)

    def cancel(self, pipeline: str, partition: int, instance: int, *, timeout: float | None = None) -> None:
        """As :meth:`AsyncClient.cancel`."""
        self._thread.call(lambda: self._client.cancel(pipeline, partition, instance, timeout=timeout))

    def send(self, exchange: str, event: Event, *, timeout: float | None = None) -> int:
        """As :meth:`AsyncClient.send`."""
        return self._thread.call(lambda: self._client.send(exchange, event, timeout=timeout))

    def receive(self, exchange: str, *, group: str | None = None) -> Iterator[Event]:
        """As :meth:`AsyncClient.receive`."""
        return self._steps(lambda: self._client.receive(exchange, group=group))

    def call(self, endpoint: str, event: Event, *, timeout: float | None = None) -> Event:
        """As :meth:`AsyncClient.call`."""
        return self._thread.call(lambda: self._client.call(endpoint, event, timeout=timeout))

    def call_stream(self, endpoint: str, *events: Event, timeout: float | None = None) -> Iterator[Event]:
        """As :meth:`AsyncClient.call_stream`."""
        return self._steps(lambda: self._client.call_stream(endpoint, *events, timeout=timeout))

    def serve(self, endpoint: str, function: Callable[[ServedCall], Any], *, concurrency: int = 1) -> None:
        """As :meth:`AsyncClient.serve`; the function runs in a thread. It ends as :meth:`work` does."""
        with _signals(self.stop):
            self._thread.call(lambda: self._client.serve(endpoint, function, concurrency=concurrency))

    def describe(self, *, timeout: float | None = None) -> ApplicationDescription:
        """As :meth:`AsyncClient.describe`."""
        return self._thread.call(lambda: self._client.describe(timeout=timeout))

    def close(self) -> None:
        """As :meth:`AsyncClient.close`; it also ends the thread. May be called again."""
        try:
            with contextlib.suppress(LocalProtocolError):
                self._thread.call(self._client.close)
        finally:
            self._thread.stop()

    def _steps(self, make: Callable[[], AsyncIterator[Event]]) -> Iterator[Event]:
        steps = make()
        try:
            while True:
                try:
                    yield self._thread.call(lambda: _next(steps))
                except _Ended:
                    return
        finally:
            if not self._thread.stopped:
                self._thread.call(lambda: _close(steps))


class _Ended(Exception):
    """An asynchronous iterator has ended; StopAsyncIteration cannot pass through a future."""


async def _next(steps: AsyncIterator[T]) -> T:
    try:
        return await steps.__anext__()
    except StopAsyncIteration:
        raise _Ended from None


async def _close(steps: Any) -> None:
    await steps.aclose()


def _begun(bulk: BulkPublishing) -> tuple[BulkPublishing, asyncio.Task[None]]:
    return bulk, asyncio.get_running_loop().create_task(bulk.run())


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class BlockingMembership(Generic[D]):
    """The blocking form of a :class:`Membership`: an iterator of deliveries, and a context manager that leaves."""

    def __init__(self, member: Membership[D], thread: _ClientThread) -> None:
        self._member: Membership[D] = member
        self._thread = thread

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingDelivery[D]:
        try:
            return BlockingDelivery(self._thread.call(lambda: _next(self._member)), self._thread)
        except _Ended:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._thread.read(self._member.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As :meth:`Membership.close`."""
        if not self._thread.stopped:
            self._thread.call(self._member.close)


class BlockingDelivery(Generic[D]):
    """The blocking form of a :class:`StreamDelivery` or a :class:`StageWork`; it has the same attributes."""

    def __init__(self, delivery: D, thread: _ClientThread) -> None:
        self._delivery: D = delivery
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._delivery)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._delivery, name)

    def ack(self, *output: Any) -> tuple[WrittenEvents, ...]:
        """As :meth:`StreamDelivery.ack`, and with an output as :meth:`StageWork.ack`."""
        delivery: Any = self._delivery
        return self._thread.call(lambda: delivery.ack(*output))

    def nack(self, delay: float | timedelta = 0, reason: str = "") -> None:
        """As :meth:`StreamDelivery.nack`."""
        self._thread.call(lambda: self._delivery.nack(delay, reason))

    def begin(self) -> BlockingTransaction:
        """As :meth:`StreamDelivery.begin`."""
        return BlockingTransaction(self._thread.call(self._delivery.begin), self._thread)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[BlockingTransaction]:
        """As :meth:`StreamDelivery.transaction`."""
        block = self._delivery.transaction()
        entered = self._thread.call(block.__aenter__)
        try:
            yield BlockingTransaction(entered, self._thread)
        except BaseException:
            kind, error, trace = sys.exc_info()
            self._thread.call(lambda: block.__aexit__(kind, error, trace))
            raise
        self._thread.call(lambda: block.__aexit__(None, None, None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.stopped:
            self._thread.call(lambda: self._delivery.__aexit__(kind, error, trace))


class BlockingTransaction:
    """The blocking form of a :class:`ClientTransaction`."""

    def __init__(self, transaction: ClientTransaction, thread: _ClientThread) -> None:
        self._transaction = transaction
        self._thread = thread

    @property
    def written(self) -> tuple[WrittenEvents, ...]:
        """As :attr:`ClientTransaction.written`."""
        return self._transaction.written

    def publish(self, stream: str, *events: Event, partition: int | None = None) -> None:
        """As :meth:`ClientTransaction.publish`."""
        self._thread.call(lambda: self._transaction.publish(stream, *events, partition=partition))


def run_stages(*stages: StageFunction, **settings: Any) -> None:
    """Work on stages as a whole program: connect, run their functions, and end at SIGINT or SIGTERM with one line.

    ``settings`` are those of :class:`Client`. Logs warnings on standard error unless the program has set logging up.
    """
    checked = stages_of(stages)
    if not logging.getLogger().handlers and not log.handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
    with Client(**settings) as client:
        client.work(*checked)


@contextlib.contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM call ``stop``, and the second one interrupts; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def note(number: int, _: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        print(f"{signal.Signals(number).name}: finishing; once more ends at once.", file=sys.stderr, flush=True)
        stop()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
