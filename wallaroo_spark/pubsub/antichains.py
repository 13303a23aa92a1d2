"""Lower and upper frontiers of a topic, as antichains: sets of times in which no time is before another.

Source: ``docs/pubsub.md#times``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.times import Time, at_or_before, key

Changes = list[tuple[Time, int]]
"""Changes of a frontier as (time, change of its count). Changes that :meth:`MinimalAntichain.update` returns are +1 or
-1."""


def minimal(times: Iterable[Time]) -> list[Time]:
    """Return the minimal elements of ``times``, without duplicates, in a fixed order."""
    # ``key`` sorts every time behind all times that are before it, so one pass finds the minimal ones.
    found: list[Time] = []
    for time in sorted(set(times), key=key):
        if not any(at_or_before(other, time) for other in found):
            found.append(time)
    return found


class MinimalAntichain:
    """A lower frontier: the minimal elements of a multiset of times, kept up to date by changes of the counts.

    Several partitions can hold the same time. It stays in the multiset until its count is zero.
    """

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._counts: Counter[Time] = Counter()
        self._elements: list[Time] = []
        self.update([(time, 1) for time in times])

    def __iter__(self) -> Iterator[Time]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __repr__(self) -> str:
        return f"MinimalAntichain({self._elements!r})"

    @property
    def elements(self) -> tuple[Time, ...]:
        """The frontier, in a fixed order."""
        return tuple(self._elements)

    @property
    def held(self) -> dict[Time, int]:
        """The count of each time in the multiset, including times that are not minimal."""
        return dict(self._counts)

    def update(self, changes: Iterable[tuple[Time, int]]) -> Changes:
        """Apply all changes at once. Return the resulting changes of the frontier: removed times (-1), then new ones
        (+1).

        Raises :class:`PubSubError`, and changes nothing, when a count would become negative.
        """
        counts = self._counts.copy()
        for time, change in changes:
            counts[time] += change
        for time, count in counts.items():
            if count < 0:
                raise PubSubError(
                    f"a frontier with {self._counts[time]} of the time {time!r} cannot remove {-count} more than that",
                    code="epoch-invalid",
                    time=time,
                )
        counts = +counts
        before, after = self._elements, minimal(counts)
        self._counts, self._elements = counts, after
        gone = [(time, -1) for time in before if time not in after]
        return gone + [(time, 1) for time in after if time not in before]

    def may_see(self, time: Time) -> bool:
        """Whether data at ``time`` may still arrive: some element is at or before it."""
        return any(at_or_before(element, time) for element in self._elements)


class MaximalAntichain:
    """An upper frontier: the maximal elements of the inserted times."""

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._elements: list[Time] = []
        for time in times:
            self.insert(time)

    def __iter__(self) -> Iterator[Time]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __repr__(self) -> str:
        return f"MaximalAntichain({list(self.elements)!r})"

    @property
    def elements(self) -> tuple[Time, ...]:
        """The frontier, in a fixed order."""
        return tuple(sorted(self._elements, key=key))

    def insert(self, time: Time) -> bool:
        """Add a time and drop the elements before it. Returns False when an element already covers ``time``."""
        if self.covers(time):
            return False
        self._elements = [element for element in self._elements if not at_or_before(element, time)]
        self._elements.append(time)
        return True

    def covers(self, time: Time) -> bool:
        """Whether ``time`` is at or before an element."""
        return any(at_or_before(time, element) for element in self._elements)

    def drop_passed(self, lower: MinimalAntichain) -> None:
        """Drop the elements that the lower frontier has passed, because no data at or before them arrives any more."""
        self._elements = [element for element in self._elements if lower.may_see(element)]
