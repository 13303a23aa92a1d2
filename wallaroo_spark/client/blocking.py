"""The client for plain scripts: the same methods without ``await``.

    with Client("gateway:7200") as client:
        client.publish("shop/orders", Event("shop.order.created", {"order": 17}))

An event loop runs in a thread of its own; every call runs there while the caller waits.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from wallaroo_spark.client.arguments import ClientSettings, iterable_of
from wallaroo_spark.client.client import AsyncClient
from wallaroo_spark.client.members import (
    ClientTransaction,
    DeliveryBase,
    Membership,
    StageWork,
    StreamDelivery,
    WrittenEvents,
)
from wallaroo_spark.client.publishing import PublishedEvents
from wallaroo_spark.client.stages import StageFunction, stages_of
from wallaroo_spark.client.window import PublishedEvent
from wallaroo_spark.errors import LocalProtocolError, one_line
from wallaroo_spark.event_loop import Blocking, CallerThread, blocking, blocking_iterator, end_tasks, next_of
from wallaroo_spark.settings import takes_settings

log = one_line("wallaroo_spark.client")
P = ParamSpec("P")
D = TypeVar("D", StreamDelivery, StageWork)


class BlockingTransaction(Blocking[ClientTransaction]):
    """The blocking form of a :class:`ClientTransaction`."""

    @property
    def written(self) -> tuple[WrittenEvents, ...]:
        """As :attr:`ClientTransaction.written`."""
        return self._asynchronous.written

    publish = blocking(ClientTransaction.publish)


class BlockingDelivery(Blocking[D]):
    """The blocking form of a :class:`StreamDelivery` or a :class:`StageWork`; it has the same attributes."""

    def __repr__(self) -> str:
        return repr(self._asynchronous)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._asynchronous, name)

    def ack(self, *output: Any) -> tuple[WrittenEvents, ...]:
        """As :meth:`StreamDelivery.ack`, and with an output as :meth:`StageWork.ack`."""
        delivery: Any = self._asynchronous
        return self._thread.call(lambda: delivery.ack(*output))

    extend = blocking(DeliveryBase.extend)
    nack = blocking(DeliveryBase.nack)

    def begin(self) -> BlockingTransaction:
        """As :meth:`StreamDelivery.begin`."""
        return BlockingTransaction(self._thread.call(self._asynchronous.begin), self._thread)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[BlockingTransaction]:
        """As :meth:`StreamDelivery.transaction`."""
        block = self._asynchronous.transaction()
        entered = self._thread.call(block.__aenter__)
        with contextlib.ExitStack() as stack:
            stack.push(lambda *failure: self._thread.call(lambda: block.__aexit__(*failure)))
            yield BlockingTransaction(entered, self._thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._thread.stopped:
            self._thread.call(lambda: self._asynchronous.__aexit__(kind, error, trace))


class BlockingMembership(Blocking[Membership[D]]):
    """The blocking form of a :class:`Membership`: an iterator of deliveries, and a context manager that leaves."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingDelivery[D]:
        found = self._thread.call(lambda: next_of(self._asynchronous))
        if found is None:
            raise StopIteration
        return BlockingDelivery(found[0], self._thread)

    def __enter__(self) -> Self:
        self._thread.read(self._asynchronous.start)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As :meth:`Membership.close`."""
        if not self._thread.stopped:
            self._thread.call(self._asynchronous.close)


def _membership(
    method: Callable[Concatenate[AsyncClient, P], Membership[D]],
) -> Callable[Concatenate[Client, P], BlockingMembership[D]]:
    """The blocking form of a method that makes a member."""

    @functools.wraps(method)
    def join(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> BlockingMembership[D]:
        member = self._thread.read(lambda: method(self._asynchronous, *args, **kwargs))
        return BlockingMembership(member, self._thread)

    return join


def _publishing(
    method: Callable[Concatenate[AsyncClient, P], PublishedEvents],
) -> Callable[Concatenate[Client, P], Iterator[PublishedEvent]]:
    """The blocking form of a bulk publish, whose events are iterated over in the caller's thread."""

    @functools.wraps(method)
    def publish(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[PublishedEvent]:
        asked = method(self._asynchronous, *args, **kwargs)
        iterable_of(asked.events, blocking=True)
        return self._published(asked)

    return publish


def _until_stopped(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Client, P], None]:
    """The blocking form of a method that runs until :meth:`Client.stop`, which another thread or a signal handler
    calls. In the main thread SIGINT and SIGTERM end it too, with one line on standard error."""

    @functools.wraps(method)
    def run(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> None:
        with _signals(self.stop):
            self._thread.call(lambda: method(self._asynchronous, *args, **kwargs))

    return run


class Client(Blocking[AsyncClient]):
    """A client with blocking methods; several threads may use it. The methods raise as those of :class:`AsyncClient`
    do. :meth:`work` and :meth:`serve` end at SIGINT and SIGTERM, too, when the main thread has called them."""

    @takes_settings(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        """The settings:"""
        thread = CallerThread(
            "client", closed="client-closed", forked="client-closed", remedy="make a Client after the fork"
        )
        try:
            super().__init__(thread.read(lambda: AsyncClient(**vars(settings))), thread)
        except BaseException:
            thread.stop()
            raise

    def __repr__(self) -> str:
        return f"<{repr(self._asynchronous)[6:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def gateway(self) -> str:
        """As :attr:`AsyncClient.gateway`."""
        return self._asynchronous.gateway

    publish = blocking(AsyncClient.publish)
    publish_many = _publishing(AsyncClient.publish_many)
    cancel = blocking(AsyncClient.cancel)
    take_away = blocking(AsyncClient.take_away)
    change_group = blocking(AsyncClient.change_group)
    send = blocking(AsyncClient.send)
    call = blocking(AsyncClient.call)
    describe = blocking(AsyncClient.describe)
    receive = blocking_iterator(AsyncClient.receive)
    call_stream = blocking_iterator(AsyncClient.call_stream)
    consume = _membership(AsyncClient.consume)
    stage = _membership(AsyncClient.stage)
    work = _until_stopped(AsyncClient.work)
    serve = _until_stopped(AsyncClient.serve)

    def _published(self, asked: PublishedEvents) -> Iterator[PublishedEvent]:
        news = threading.Event()
        task = self._thread.read(lambda: asked.start(news.set))
        try:
            yield from asked.in_thread(news)
        finally:
            if not self._thread.stopped:
                self._thread.call(lambda: end_tasks(task))

    def stop(self) -> None:
        """Let :meth:`work` and :meth:`serve` end. It does not wait."""
        self._thread._soon(self._asynchronous.stop)

    def close(self) -> None:
        """As :meth:`AsyncClient.close`; it also ends the thread. May be called again."""
        try:
            with contextlib.suppress(LocalProtocolError):
                self._thread.call(self._asynchronous.close)
        finally:
            self._thread.stop()


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

    with contextlib.ExitStack() as before:
        for number in (signal.SIGINT, signal.SIGTERM):
            before.callback(signal.signal, number, signal.signal(number, note))
        yield
