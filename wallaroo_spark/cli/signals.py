"""Handles SIGINT and SIGTERM as requests to stop, in the Python process and in the Java process of a Spark driver."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

import click

from wallaroo_spark.cli.common import INTERRUPTED, TERMINATED

T = TypeVar("T")

BEFORE_SPARK = 100
"""Priority of the hook in the Java process, above that of Spark's own hooks, which end its jobs (50 at most)."""
HOOK_SECONDS = 30
"""How long the Java process waits for Python to stop the query. A choice: Hadoop's own limit, 30 s."""


def run_until_sigterm(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine. SIGTERM cancels it, so that connections are closed in order, and is the exit status then."""

    async def cancellable() -> T:
        this = asyncio.current_task()
        if this is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
        return await work

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise click.exceptions.Exit(TERMINATED) from None


@contextlib.contextmanager
def on_signals(note: Callable[[int], object]) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM call ``note`` with their number; in the main thread alone."""
    with contextlib.ExitStack() as before:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.signal(number, lambda received, _: note(received))
                before.callback(signal.signal, number, handler)
        yield


def status_of(number: int | None) -> int:
    """The exit status after a signal."""
    return INTERRUPTED if number == signal.SIGINT else TERMINATED


def exit_after_interrupt(number: int | None) -> None:
    """End the program with its status after SIGINT. SIGTERM is the regular end, with status 0."""
    if number == signal.SIGINT:
        raise click.exceptions.Exit(INTERRUPTED)


class Signals(contextlib.ExitStack):
    """Records SIGINT and SIGTERM. It is a context manager, which restores the old handlers on exit, and which SIGTERM
    ends without an error.

    While :attr:`gentle` is False (while Spark starts), a signal raises :class:`KeyboardInterrupt` at once. Afterwards
    it is only recorded, so that it interrupts no call to Spark. A second signal raises in any case.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: signal.Signals | None = None
        """The last signal; None before the first."""
        self.gentle = False
        """Whether the first signal is only recorded."""

    def __enter__(self) -> Self:
        self.install()
        for logger in map(logging.getLogger, (None, "py4j.clientserver")):
            logger.addFilter(_not_a_cut_call)
            self.callback(logger.removeFilter, _not_a_cut_call)
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> bool:
        super().__exit__(kind, *details)
        return kind is KeyboardInterrupt and self.received == signal.SIGTERM

    def install(self) -> None:
        """Install the handlers. To be called again when Spark has started, because Spark replaces that of SIGINT."""
        self.enter_context(on_signals(self._note))

    def _note(self, number: int) -> None:
        again = self.received is not None
        self.received = signal.Signals(number)
        if again or not self.gentle:
            raise KeyboardInterrupt


def _not_a_cut_call(record: logging.LogRecord) -> bool:
    """False for Py4J's log records of a call that a signal has interrupted; Py4J recovers from that by itself."""
    cut = "KeyboardInterrupt while sending command", "Exception occurred while shutting down connection"
    return not str(record.msg).startswith(cut)


class _Hook:
    """The hook that the Java process runs before it ends."""

    def __init__(self, signals: Signals) -> None:
        self.done = threading.Event()
        self._signals = signals

    def run(self) -> None:
        """Record SIGTERM, and wait until the query is stopped."""
        if self._signals.received is None:
            self._signals.received = signal.SIGTERM
        self.done.wait(HOOK_SECONDS)

    class Java:
        """The Java interface that Py4J implements with this class."""

        implements = ("java.lang.Runnable",)


@contextlib.contextmanager
def java_waits(session: Any, signals: Signals) -> Iterator[None]:
    """Within the block, a Java process that receives SIGTERM waits until the query is stopped before it ends.

    Under spark-submit only the Java process receives the signal; without the wait it would cancel every job at once.
    Does nothing on Spark Connect.
    """
    hook = _Hook(signals)
    manager = thread = None
    try:
        context = session.sparkContext
        gateway: Any = importlib.import_module("pyspark.java_gateway")
        gateway.ensure_callback_server_started(context._gateway)
        jvm = context._jvm
        thread = jvm.java.lang.Thread(hook)
        manager = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        manager.addShutdownHook(thread, BEFORE_SPARK, HOOK_SECONDS, jvm.java.util.concurrent.TimeUnit.SECONDS)
    except Exception as error:
        logging.getLogger("wallaroo_spark.cli").debug("the Java process does not wait for the query's end: %s", error)
    try:
        yield
    finally:
        hook.done.set()
        if manager is not None:
            with contextlib.suppress(Exception):
                manager.removeShutdownHook(thread)
