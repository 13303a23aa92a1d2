"""Logical times of a topic: their partial order, their encoding in messages, their frontiers, and what has such a time.

A time is an integer, a tuple of times (compared component by component: product order) or None, the unit time, which is
equal only to itself. All times of one topic have the same shape. Frontiers are antichains: sets of times in which no
time is before another. A subscription delivers rows and frontiers. Source: ``docs/pubsub.md#times``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import PubSubError
from wallaroo_spark.protocol.faults import Fault, broken

Time = int | tuple["Time", ...] | None

Key = int | tuple["Key", ...]
"""Type of the sort keys of :func:`key`."""

LEAST_INTEGER = -(1 << 63)
"""The least integer that a MessagePack message can carry."""
GREATEST_INTEGER = (1 << 64) - 1
"""The greatest integer that a MessagePack message can carry."""

MOST_COMPONENTS = 16
"""Limit of the components of a tuple. A choice; this project's topics use 2."""

DEEPEST = 4
"""Limit of the nesting of tuples. A choice; this project's topics use 1. It bounds the parser's recursion."""

MOST_NUMBERS = 64
"""Limit of the integers and units in one time. A choice; it bounds the work of one comparison."""


def at_or_before(earlier: Time, later: Time) -> bool:
    """Whether ``earlier`` ≤ ``later`` in the partial order.

    Raises :class:`PubSubError` for times of different shapes, which are not comparable.
    """
    if type(earlier) is int and type(later) is int:
        return earlier <= later
    if isinstance(earlier, tuple) and isinstance(later, tuple) and len(earlier) == len(later):
        return all(at_or_before(a, b) for a, b in zip(earlier, later, strict=True))
    if earlier is None and later is None:
        return True
    raise PubSubError(
        f"the times {earlier!r} and {later!r} are of different shapes; give all of a topic's epochs as integers, "
        "or all as tuples of one length",
        code="epoch-invalid",
        times=(earlier, later),
    )


def key(time: Time) -> Key:
    """A sort key that is the same everywhere: every time sorts after all times that are before it."""
    if time is None:
        return 0
    if isinstance(time, tuple):
        return tuple(key(component) for component in time)
    return time


def least(like: Time) -> Time:
    """The least time of the shape of ``like``: zero in each place, because epochs count from zero."""
    if isinstance(like, tuple):
        return tuple(least(component) for component in like)
    return None if like is None else 0


def same_shape(one: Time, other: Time) -> bool:
    """Whether two times are comparable."""
    return least(one) == least(other)


def batch_of(time: Time) -> int:
    """The batch of a published time: an integer itself, or the first component of a tuple.

    Raises :class:`PubSubError` for any other time.
    """
    first = time[0] if isinstance(time, tuple) and time else time
    if type(first) is not int:
        raise PubSubError(
            f"the time {time!r} has no batch; expected a batch id, or a tuple that begins with one",
            code="epoch-invalid",
        )
    return first


def start_of(batch: int, *, product: bool) -> Time:
    """The least time of a batch: its id, or ``(id, 0)`` with ``product``."""
    return (batch, 0) if product else batch


def end_of(batch: int, *, product: bool) -> Time:
    """An upper bound of the times of a batch."""
    return (batch, GREATEST_INTEGER) if product else batch


def check(time: Time) -> Time:
    """Return the time if a message can carry it. Raises :class:`PubSubError` with the value and the limit otherwise."""
    if isinstance(time, tuple):
        if not 1 <= len(time) <= MOST_COMPONENTS or _depth(time) > DEEPEST or _numbers(time) > MOST_NUMBERS:
            raise PubSubError(
                f"the time {str(time)[:200]} is a tuple of {len(time)} components; the limit is {_LIMITS}",
                code="epoch-invalid",
                time=time,
            )
        for component in time:
            check(component)
    elif time is not None and not (type(time) is int and LEAST_INTEGER <= time <= GREATEST_INTEGER):
        raise PubSubError(
            f"the time {time!r} is no integer of 64 bits, no tuple of times and not None", code="epoch-invalid"
        )
    return time


def pack(time: Time) -> Any:
    """Convert a time to MessagePack values: integers, arrays and nil."""
    return [pack(component) for component in time] if isinstance(time, tuple) else time


def parse(value: Any, name: str) -> Time:
    """Convert MessagePack values to a time. Raises :class:`RemoteProtocolError` if they are not a time; its message
    begins with ``name``.
    """
    time: Time = _parse(value, DEEPEST)
    if time is _NONE or _numbers(time) > MOST_NUMBERS:
        raise broken(
            Fault.INVALID_TEXT,
            f"{name} has {str(value)[:40]!r} where a time is expected: an integer, nil, or an array of {_LIMITS}",
        )
    return time


_LIMITS = f"1 to {MOST_COMPONENTS} times ({DEEPEST} arrays deep, {MOST_NUMBERS} numbers in all)"
_NONE: Any = object()


def _parse(value: Any, deepest: int) -> Any:
    if value is None or type(value) is int:
        return value
    if not (isinstance(value, list) and 1 <= len(value) <= MOST_COMPONENTS and deepest > 0):
        return _NONE
    components = tuple(_parse(component, deepest - 1) for component in value)
    return _NONE if any(component is _NONE for component in components) else components


def _depth(time: Time) -> int:
    return 1 + max(map(_depth, time), default=0) if isinstance(time, tuple) else 0


def _numbers(time: Time) -> int:
    return sum(map(_numbers, time)) if isinstance(time, tuple) else 1


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


class _Antichain:
    """The elements of a frontier."""

    _elements: list[Time]

    def __iter__(self) -> Iterator[Time]:
        return iter(self._elements)

    def __len__(self) -> int:
        return len(self._elements)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self.elements)!r})"

    @property
    def elements(self) -> tuple[Time, ...]:
        """The frontier, in a fixed order."""
        return tuple(sorted(self._elements, key=key))


class MinimalAntichain(_Antichain):
    """A lower frontier: the minimal elements of a multiset of times, kept up to date by changes of the counts.

    Several partitions can hold the same time. It stays in the multiset until its count is zero.
    """

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._counts: Counter[Time] = Counter()
        self._elements: list[Time] = []
        self.update([(time, 1) for time in times])

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


class MaximalAntichain(_Antichain):
    """An upper frontier: the maximal elements of the inserted times."""

    def __init__(self, times: Iterable[Time] = ()) -> None:
        self._elements: list[Time] = []
        for time in times:
            self.insert(time)

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


@dataclass(frozen=True)
class Epoch:
    """Rows of one epoch from one partition.

    An epoch can consist of several of these in a row. It is complete when a :class:`Frontier` has passed it.
    """

    epoch: Time
    """Time of the rows: a batch id, or a tuple that begins with one."""
    partition: int
    """Partition of the topic that sent the rows."""
    batch: Any = field(repr=False)
    """The rows, a ``pyarrow.RecordBatch``."""


@dataclass(frozen=True)
class Frontier:
    """The lower frontier of the topic has moved. Everything before it has been delivered to the application."""

    frontier: tuple[Time, ...]
    """The least times that may still arrive."""
    changes: tuple[tuple[Time, int], ...]
    """The times that left the frontier (-1) and the times that entered it (+1)."""


@dataclass(frozen=True)
class Position:
    """The progress of a subscription: it has delivered everything before ``time``.

    Another subscription can continue from it with ``resume``, as long as the topic retains the batches that follow.
    """

    identity: str
    """Identity of the topic's history."""
    time: Time
    """The least time that was not delivered."""


@dataclass(frozen=True)
class Lost:
    """A failure to reach the publisher of a partition."""

    partition: int
    """Partition of the topic."""
    address: str
    """Its last address, empty if it was never reached."""
    reason: str
    """The last failure, as a sentence."""
    seconds: float
    """Seconds since the partition was lost."""


Item = Epoch | Frontier
