"""Reads that wait, and their effect on the worker's state."""

from __future__ import annotations

from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.reads import Reads

PLANNED = PlannedRange(StreamKey("shop-1", 7), None, 5)


async def test_a_look_that_does_not_wait_tells_what_is_looked_for() -> None:
    told: list[tuple[PlannedRange, ...]] = []
    reads = Reads(Buffer(1 << 20, Origin(0, 1), "increasing"), told.append, lambda *later: None)

    assert not await reads.find({0: PLANNED}, 0.0)
    assert told == [(PLANNED,)]
