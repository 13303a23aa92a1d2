"""Reading ahead: what comes from a worker is read while what came before it goes on to Spark.

Source: ``docs/decisions/reading-ahead.md``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1
_END_SECONDS = 1.0
"""How long a reader that was cancelled may take to end; one that hangs is left behind, for its call has a deadline."""


class ReadAhead(Generic[T]):
    """An iterator over ``items`` that a thread reads, up to ``depth`` of them before they are asked for.

    What ``items`` raises is raised in its place. ``cancel`` is called when the iterator is closed before its end, from
    the closing thread, and has to make ``items`` end. Raises :class:`TimeoutError` when nothing has come within
    ``silence`` seconds of being asked for.
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
    def __init__(self, error: Exception | None) -> None:
        self.error = error
