"""Rates from two snapshots of a receiver, and a bounded history of snapshots. Pure: times stand in the snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wallaroo_spark.observe.receiver import InstanceStatus, ReceiverStatus, SlotStatus, StreamStatus

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
    generations = {slot.slot: slot.generation for slot in before.slots if slot.answers}
    slots = {
        slot.slot: _rate(old, slot, seconds)
        for slot in after.slots
        if slot.answers and (old := _slot_before(before, slot)) is not None
    }
    same = {slot.slot for slot in after.slots if slot.answers and generations.get(slot.slot) == slot.generation}
    instances = {(one.slot, one.name): one for one in before.instances}
    streams = {(one.slot, one.scope, one.stream_id): one for one in before.streams}
    return Rates(
        seconds,
        Rate(sum(rate.rows_in for rate in slots.values()), sum(rate.rows_out for rate in slots.values())),
        slots,
        {
            (one.slot, one.name): _rate(instances[one.slot, one.name], one, seconds)
            for one in after.instances
            if one.slot in same and (one.slot, one.name) in instances
        },
        {
            (one.slot, one.scope, one.stream_id): _rate(streams[one.slot, one.scope, one.stream_id], one, seconds)
            for one in after.streams
            if one.slot in same and (one.slot, one.scope, one.stream_id) in streams
        },
    )


def _slot_before(before: ReceiverStatus, slot: SlotStatus) -> SlotStatus | None:
    known = next((one for one in before.slots if one.slot == slot.slot), None)
    if known is None or not known.answers:
        return None
    return known if known.generation == slot.generation else SlotStatus(slot.slot, known.state)


Counted = SlotStatus | InstanceStatus | StreamStatus


def _rate(before: Counted, after: Counted, seconds: float) -> Rate:
    came, left = after.rows_in - before.rows_in, after.rows_out - before.rows_out
    return Rate(max(0, came) / seconds, max(0, left) / seconds)


class History:
    """The last snapshots of one receiver, the oldest first; at most ``size``."""

    def __init__(self, size: int = HISTORY) -> None:
        self._snapshots: deque[ReceiverStatus] = deque(maxlen=size)

    def __iter__(self) -> Iterator[ReceiverStatus]:
        return iter(tuple(self._snapshots))

    def __len__(self) -> int:
        return len(self._snapshots)

    def add(self, status: ReceiverStatus) -> None:
        """Append a snapshot. One that is not newer than the last one is ignored."""
        if not self._snapshots or status.time > self._snapshots[-1].time:
            self._snapshots.append(status)

    @property
    def last(self) -> ReceiverStatus | None:
        """The newest snapshot; None when there is none."""
        return self._snapshots[-1] if self._snapshots else None

    def rates(self, seconds: float = WINDOW_SECONDS) -> Rates:
        """The rates over the last ``seconds``, or over the whole history when that is shorter."""
        last = self.last
        if last is None:
            return Rates()
        first = next((one for one in self._snapshots if one.time >= last.time - seconds), last)
        if first is last and len(self._snapshots) > 1:
            first = self._snapshots[-2]
        return rates(first, last)
