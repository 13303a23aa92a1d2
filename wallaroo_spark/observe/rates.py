"""Rates from two snapshots of a receiver, and a bounded history of snapshots. Pure: times stand in the snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from wallaroo_spark.observe.receiver import InstanceStatus, ReceiverStatus, SlotStatus, StreamStatus

T = TypeVar("T", InstanceStatus, StreamStatus)
K = TypeVar("K", bound=Hashable)
WINDOW_SECONDS = 5.0
"""The usual window of a rate. A choice: some batches long, and short enough to follow a change with the eye."""
HISTORY = 300
"""Snapshots that a history keeps. A choice: five minutes at one a second."""


@dataclass(frozen=True)
class Rate:
    """Rows a second over a window."""

    rows_in: float = 0.0
    """Received rows a second."""
    rows_out: float = 0.0
    """Committed rows a second."""


@dataclass(frozen=True)
class Rates:
    """The rates of a receiver and its parts between two snapshots. A part that is in only one of both has none."""

    seconds: float = 0.0
    """The time between the snapshots."""
    total: Rate = field(default_factory=Rate)
    """Sum over the slots."""
    slots: Mapping[int, Rate] = field(default_factory=dict)
    """By slot."""
    instances: Mapping[tuple[int, str], Rate] = field(default_factory=dict)
    """By slot and instance."""
    streams: Mapping[tuple[int, str, int], Rate] = field(default_factory=dict)
    """By slot, scope and stream id."""


def rates(before: ReceiverStatus, after: ReceiverStatus) -> Rates:
    """The rates between two snapshots of one receiver; all zero when no time lies between them.

    A worker that was replaced meanwhile counts from zero. Its former rows are not part of the rate.
    """
    seconds = after.time - before.time
    if seconds <= 0:
        return Rates()
    known = {slot.slot: slot for slot in before.slots if slot.answers}
    slots: dict[int, Rate] = {}
    same = set()
    for slot in after.slots:
        if slot.answers and (old := known.get(slot.slot)) is not None:
            if old.generation == slot.generation:
                same.add(slot.slot)
            else:
                old = SlotStatus(slot.slot, old.state)
            slots[slot.slot] = _rate(old, slot, seconds)

    def of_parts(olds: Iterable[T], news: Iterable[T], key: Callable[[T], K]) -> dict[K, Rate]:
        by_key = {key(one): one for one in olds}
        found = {key(one): one for one in news if one.slot in same}
        return {name: _rate(by_key[name], one, seconds) for name, one in found.items() if name in by_key}

    return Rates(
        seconds,
        Rate(sum(rate.rows_in for rate in slots.values()), sum(rate.rows_out for rate in slots.values())),
        slots,
        of_parts(before.instances, after.instances, lambda one: (one.slot, one.name)),
        of_parts(before.streams, after.streams, lambda one: (one.slot, one.scope, one.stream_id)),
    )


def _rate(
    before: SlotStatus | InstanceStatus | StreamStatus,
    after: SlotStatus | InstanceStatus | StreamStatus,
    seconds: float,
) -> Rate:
    came, left = after.rows_in - before.rows_in, after.rows_out - before.rows_out
    return Rate(max(0, came) / seconds, max(0, left) / seconds)


class History(deque[ReceiverStatus]):
    """The last snapshots of one receiver, the oldest first; at most ``size``."""

    def __init__(self, size: int = HISTORY) -> None:
        super().__init__(maxlen=size)

    def add(self, status: ReceiverStatus) -> None:
        """Append a snapshot. One that is not newer than the last one is ignored."""
        if not self or status.time > self[-1].time:
            self.append(status)

    def rates(self, seconds: float = WINDOW_SECONDS) -> Rates:
        """The rates over the last ``seconds``, or over the whole history when that is shorter."""
        if not self:
            return Rates()
        last = self[-1]
        first = next(one for one in self if one.time >= last.time - seconds)
        if first is last and len(self) > 1:
            first = self[-2]
        return rates(first, last)
