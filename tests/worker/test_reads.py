"""Reads that wait, and their effect on the worker's state."""

from __future__ import annotations

from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.reads import Reads, WaitedRanges

PLANNED = PlannedRange(StreamKey("shop-1", 7), None, 5)


async def test_a_look_that_does_not_wait_returns_the_searched_streams() -> None:
    told: list[tuple[PlannedRange, ...]] = []
    reads = Reads(Buffer(1 << 20, Origin(0, 1), "increasing"), told.append, lambda *later: None)

    assert not await reads.find({0: PLANNED}, 0.0)
    assert told == [(PLANNED,)]


def test_a_range_is_waited_for_as_long_as_one_read_waits_for_it() -> None:
    told: list[tuple[PlannedRange, ...]] = []
    other = PlannedRange(StreamKey("shop-2", 8), 1, 3)
    waited = WaitedRanges(told.append)
    waited.add([PLANNED, other])
    waited.add([PLANNED])
    waited.remove(iter([PLANNED]))
    assert told == [(PLANNED, other)]

    waited.remove([PLANNED])
    waited.remove([other])
    assert told == [(PLANNED, other), (other,), ()]
