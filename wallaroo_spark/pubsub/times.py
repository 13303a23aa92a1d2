"""Logical times of a topic: their partial order, and their encoding in messages.

A time is an integer, a tuple of times (compared component by component: product order) or None, the unit time, which is
equal only to itself. All times of one topic have the same shape. Source: ``docs/pubsub.md#times``.
"""

from __future__ import annotations

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
