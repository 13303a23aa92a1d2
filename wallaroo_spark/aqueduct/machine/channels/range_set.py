"""A set of numbers as sorted ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from wallaroo_spark.aqueduct.frames import Ranges


class RangeSet:
    """Numbers as sorted ranges that neither overlap nor touch. Memory and time follow the gaps, not the numbers."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add the numbers from ``start`` to ``end``, without ``end``."""
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def update(self, other: RangeSet) -> None:
        """Add all numbers of another set."""
        for start, end in other:
            self.add(start, end)

    def discard_below(self, bound: int) -> None:
        """Remove all numbers below a bound."""
        keep = bisect_right(self._ends, bound)
        del self._starts[:keep], self._ends[:keep]
        if self._starts:
            self._starts[0] = max(self._starts[0], bound)

    def clear(self) -> None:
        """Remove all numbers."""
        self._starts.clear()
        self._ends.clear()

    def run_end(self, start: int) -> int:
        """The first number from ``start`` on that is not in the set."""
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 else start

    def lengths(self, start: int) -> Ranges:
        """The lengths of the ranges in the set and of the gaps between them, in turn, beginning with what is in it.

        No number of the set is below ``start``.
        """
        found: list[int] = []
        for first, end in self:
            if first > start or found:
                found += [first - start] if found else [0, first - start]
            found.append(end - first)
            start = end
        return tuple(found)

    @property
    def end(self) -> int:
        """The number behind the last one; 0 of an empty set."""
        return self._ends[-1] if self._ends else 0

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number) - 1
        return at >= 0 and number < self._ends[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._starts)
