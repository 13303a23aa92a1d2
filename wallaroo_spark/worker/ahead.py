"""Reading ahead: what comes from a worker is read while what came before it goes on to Spark."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1


class Ahead(Generic[T]):
    """An iterator over ``items`` that a thread reads, up to ``depth`` of them before they are asked for.

    What ``items`` raises is raised in its place. ``cancel`` is called when the iterator is closed before its end, from
    the closing thread, and has to make ``items`` end.
    """

    def __init__(self, items: Iterator[T], cancel: Callable[[], None], depth: int = 3) -> None:
        self._items = items
        self._cancel = cancel
        self._found: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="wallaroo-read-ahead", daemon=True)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        try:
            while not isinstance(found := self._found.get(), _End):
                yield found
            if found.error is not None:
                raise found.error
        finally:
            self._closed.set()
            if self._thread.is_alive():
                self._cancel()
                self._thread.join()

    def _read(self) -> None:
        error: Exception | None = None
        try:
            for item in self._items:
                if not self._put(item):
                    return
        except Exception as raised:
            error = raised
        self._put(_End(error))

    def _put(self, item: T | _End) -> bool:
        while not self._closed.is_set():
            try:
                self._found.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False


class _End:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
