"""Reading ahead: the next batches are read from a worker while Spark takes the batches before them.

Source: ``docs/decisions/reading-ahead.md``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1
"""Seconds after which the reading thread looks whether the iterator was closed."""
_END_SECONDS = 1.0
"""How long a cancelled thread may take to end. A choice: a thread that hangs is left alone; its call has a deadline."""


class ReadAhead(Generic[T]):
    """An iterator over ``items``. A thread reads up to ``depth`` items before they are asked for.

    An error of ``items`` is raised in place of the item. When the iterator is closed before its end, the closing
    thread calls ``cancel``, which must make ``items`` end. Raises :class:`TimeoutError` when the next item does not
    come within ``silence`` seconds.
    """

    def __init__(self, items: Iterator[T], cancel: Callable[[], None], silence: float, depth: int = 3) -> None:
        self._items = items
        self._cancel = cancel
        self._silence = silence
        self._found: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read, name="wallaroo-read-ahead", daemon=True)

    def __iter__(self) -> Iterator[T]:
        self._thread.start()
        try:
            while not isinstance(found := self._next(), _End):
                yield found
            if found.error is not None:
                raise found.error
        finally:
            self._closed.set()
            if self._thread.is_alive():
                self._cancel()
                self._thread.join(_END_SECONDS)

    def _next(self) -> T | _End:
        try:
            return self._found.get(timeout=self._silence)
        except queue.Empty:
            raise TimeoutError(f"nothing came within {self._silence:g} s") from None

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
    """The end of the items, with the error that ended them, if any."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
