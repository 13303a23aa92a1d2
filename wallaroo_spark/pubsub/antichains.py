"""The two frontiers: sets of times of which none is before another.

Source: ``docs/pubsub.md#times``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.times import Time, at_or_before, key

Changes = list[tuple[Time, int]]
"""Updates to a frontier, (time, how many more of it); those that have effect are +1 and -1."""


def minimal(times: Iterable[Time]) -> list[Time]:
    """Those of ``times`` that none of the others is before, each once, in a fixed order."""
    # Sorted so, nothing that is before a time comes behind it.
    found: list[Time] = []
    for time in sorted(set(times), key=key):
        if not any(at_or_before(other, time) for other in found):
            found.append(time)
    return found


class MinimalAntichain:
    """A lower frontier: the minimal ones of a multiset of times, kept up to date by changes to the multiset.

    Several sources can hold the same time: it stays until the last of them has given it up.
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
        """How many of each time there are, behind the frontier as well as in it."""
        return dict(self._counts)

    def update(self, changes: Iterable[tuple[Time, int]]) -> Changes:
        """Apply changes, all at once, and return those that the frontier shows: first what left it, then what came.

        Raises :class:`PubSubError`, and changes nothing, when more of a time would be given up than there are.
        """
        counts = self._counts.copy()
        for time, change in changes:
            counts[time] += change
        for time, count in counts.items():
            if count < 0:
                raise PubSubError(
                    f"a frontier with {self._counts[time]} of the time {time!r} cannot give up {-count} more than that",
                    time=time,
                )
        counts = +counts
        before, after = self._elements, minimal(counts)
        self._counts, self._elements = counts, after
        gone = [(time, -1) for time in before if time not in after]
        return gone + [(time, 1) for time in after if time not in before]

    def may_see(self, time: Time) -> bool:
        """Whether something at ``time`` may still come: an element is at or before it."""
        return any(at_or_before(element, time) for element in self._elements)


class MaximalAntichain:
    """An upper frontier: the maximal ones of the times that were inserted."""

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
        """Add a time and drop what is before it; False when it is itself at or before an element."""
        if self.covers(time):
            return False
        self._elements = [element for element in self._elements if not at_or_before(element, time)]
        self._elements.append(time)
        return True

    def covers(self, time: Time) -> bool:
        """Whether ``time`` is at or before an element."""
        return any(at_or_before(time, element) for element in self._elements)

    def drop_passed(self, lower: MinimalAntichain) -> None:
        """Drop the elements that the lower frontier has passed: nothing at or before them comes any more."""
        self._elements = [element for element in self._elements if lower.may_see(element)]
