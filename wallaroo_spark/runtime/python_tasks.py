"""The process of a Python task runs many tasks of Spark, one after another, and spends no time between two of them.

Source: ``docs/decisions/price-of-a-batch.md``.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import TaskContext

QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux has this option, other systems do not."""
_FULL_COLLECTION = 2
_RARELY = (100_000, 20, 20)
"""New objects after which a service looks for cyclic garbage among the newest, and how many of these looks are one at
older objects. Python's own are 700, 10 and 10. A choice: it bounds garbage to some 20 MB."""


class TaskProcess:
    """What this process keeps from one task to the next."""

    def __init__(self) -> None:
        self._modules = 0
        self._to_spark: socket.socket | None = None

    def prepare(self) -> TaskContext | None:
        """Call this in a task, in the thread that Spark runs it in; it returns Spark's context of the task.

        Outside of tasks it does nothing, and returns None.

        All objects that exist now are excluded from garbage collection: after each task, PySpark's daemon runs a full
        collection in the task's process before the process takes the next task. It visits each object of each module
        that Spark, Arrow and this package have loaded, and frees hardly any of them.

        The first piece of the next task is acknowledged at once. Over TCP Spark sends a task in two pieces and holds
        the second back until the first is acknowledged (Nagle's algorithm); the kernel delays the acknowledgement by
        40 ms in a connection on which this process has answered lately.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return None
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()
        if self._to_spark is None and QUICKACK is not None:
            self._to_spark = _socket_to_spark(sys._getframe())
            if self._to_spark is not None:
                with contextlib.suppress(OSError):
                    self._to_spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                gc.callbacks.append(self._collected)
        return context

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """The full collection is the last that PySpark's daemon does before it waits for the next task."""
        if phase == "stop" and info["generation"] == _FULL_COLLECTION and self._to_spark is not None:
            assert QUICKACK is not None
            with contextlib.suppress(OSError):
                self._to_spark.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)


TASK_PROCESS = TaskProcess()
"""This process."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cyclic garbage rarely in a process that serves for long.

    A service has many live objects and few cycles, and each collection looks at all objects of its generation: with
    10,000 active streams they took half of a worker's processor time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Do without the collector of cyclic garbage: a turn has many live objects and no cycles, and each collection would
    look at all of them. It took a third of the CPU of a turn with 20,000 records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _socket_to_spark(frame: FrameType | None) -> socket.socket | None:
    """The TCP connection on which PySpark's daemon gets its tasks; None outside of a task, and on a Unix socket."""
    while frame is not None:
        found = frame.f_locals.get("sock") if frame.f_code.co_name == "worker" else None
        if isinstance(found, socket.socket) and found.family in (socket.AF_INET, socket.AF_INET6):
            return found
        frame = frame.f_back
    return None
