"""A bounded series of a whole run, which becomes coarser as the time grows. Pure.

When it is full, neighbours are merged, and later values are merged before they are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ThinningSeries(Generic[T]):
    """At most ``size`` values, the oldest first, each merged out of ``stride`` appended ones."""

    def __init__(self, size: int, merge: Callable[[list[T]], T]) -> None:
        """``size`` is even and at least 2; ``merge`` makes one value of one or more neighbours."""
        self._size = size
        self._merge = merge
        self._values: list[T] = []
        self._pending: list[T] = []
        self.stride = 1

    def __len__(self) -> int:
        return len(self._values) + bool(self._pending)

    def __iter__(self) -> Iterator[T]:
        """All values; the last one may be of fewer appended values than the others."""
        yield from self._values
        if self._pending:
            yield self._merge(self._pending)

    def append(self, value: T) -> None:
        """Append one value."""
        self._pending.append(value)
        if len(self._pending) < self.stride:
            return
        self._values.append(self._merge(self._pending))
        self._pending = []
        if len(self._values) >= self._size:
            pairs = zip(self._values[::2], self._values[1::2], strict=False)
            self._values = [self._merge([first, second]) for first, second in pairs]
            self.stride *= 2
