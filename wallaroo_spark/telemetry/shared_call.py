"""A call that several threads share: threads that call while it runs wait for it and get its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Calls ``work`` once for all threads that call at the same time. It keeps no result for later calls."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._running: Future[T] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> T:
        """The result of the running call, or of a new one. Raises the error of ``work``, in every thread."""
        with self._lock:
            running = self._running
            mine: Future[T] = Future()
            if running is None:
                self._running = mine
        if running is not None:
            return running.result()
        try:
            mine.set_result(self._work())
        except BaseException as error:
            mine.set_exception(error)
        finally:
            with self._lock:
                self._running = None
        return mine.result()
