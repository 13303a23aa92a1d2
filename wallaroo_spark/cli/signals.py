"""SIGINT and SIGTERM as a wish to stop, whichever process of a Spark driver they reach."""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

BEFORE_SPARK = 100
"""Priority of the hook in the Java process: Spark's own, which end its jobs, have 50 at most."""
HOOK_SECONDS = 30
"""How long the Java process waits for Python to stop the query."""


@dataclass
class Signals:
    """Notes SIGINT and SIGTERM. As a context manager it puts the old handlers back.

    While Spark starts, a signal raises :class:`KeyboardInterrupt` at once; once :attr:`gentle` is set it is only noted,
    so that no call to Spark is cut in two. A second one of them raises in any case.
    """

    received: int | None = None
    gentle: bool = False
    _before: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Signals:
        self.install()
        logging.getLogger().addFilter(_not_a_cut_call)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeFilter(_not_a_cut_call)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Install the handlers of signals; again after Spark has started, which installs its own for SIGINT."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, self._note)
                self._before.setdefault(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        again = self.received is not None
        self.received = number
        if again or not self.gentle:
            raise KeyboardInterrupt


def _not_a_cut_call(record: logging.LogRecord) -> bool:
    """Py4J logs a traceback for a call that an interrupt has cut in two, and then clears it up."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


class _Hook:
    """The hook that the Java process runs before it ends."""

    def __init__(self, signals: Signals) -> None:
        self.done = threading.Event()
        self._signals = signals

    def run(self) -> None:
        """Note the wish, and wait until it is fulfilled."""
        if self._signals.received is None:
            self._signals.received = signal.SIGTERM
        self.done.wait(HOOK_SECONDS)

    class Java:
        """The Java interface that Py4J implements with this class."""

        implements = ("java.lang.Runnable",)


@contextlib.contextmanager
def java_waits(session: Any, signals: Signals) -> Iterator[None]:
    """While this lasts, a Java process that is told to end has the query stopped first.

    Under spark-submit the signal reaches the Java process alone, and else it would cancel every job at once. Does
    nothing on Spark Connect.
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
        logging.getLogger("wallaroo_spark.cli").debug("the Java process will not wait: %s", error)
    try:
        yield
    finally:
        hook.done.set()
        if manager is not None:
            with contextlib.suppress(Exception):
                manager.removeShutdownHook(thread)
