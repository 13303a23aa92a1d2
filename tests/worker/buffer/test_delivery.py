"""Ranges become batches: rows that arrived together are delivered together, in order, with marks."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from tests.worker.buffer.test_segments import A, B, C, take_in
from tests.worker.buffer.test_segments import buffer as buffer  # a fixture is found by its name
from wallaroo_spark.columnar import ROW_SCHEMA
from wallaroo_spark.inner.rows import Mark, Unpacker
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.buffer import delivery
from wallaroo_spark.worker.buffer.buffer import Buffer
from wallaroo_spark.worker.buffer.delivery import gather
from wallaroo_spark.worker.buffer.found import FoundRange, FoundRanges


def together(ranges: Mapping[int, FoundRange]) -> FoundRanges:
    """Ranges that were found one by one."""
    made = FoundRanges()
    made.add(ranges)
    return made


def found(buffer: Buffer, *ends: tuple[StreamKey, int]) -> dict[int, FoundRange]:
    ranges = {index: buffer.find(PlannedRange(key, None, end)) for index, (key, end) in enumerate(ends)}
    return {index: one for index, one in ranges.items() if one is not None}


def delivered(ranges: dict[int, FoundRange]) -> list[tuple[list[tuple[str, int]], list[Mark]]]:
    """Each batch as (stream, id) of its rows, and its marks."""
    batches = []
    unpacker = Unpacker(boundaries=True)
    for stored, text in gather(together(ranges)):
        rows, marks = unpacker.unpack(stored, text)
        rows.validate(full=True)
        assert rows.schema == ROW_SCHEMA
        batches.append((list(zip(rows["stream"].to_pylist(), rows["message_id"].to_pylist(), strict=True)), marks))
    return batches


def test_one_batch_has_rows_of_several_streams(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (2, 1), (1, 2), (3, 1))
    ((rows, marks),) = delivered(found(buffer, (A, 2), (B, 1), (C, 1)))
    assert rows == [("stream 1", 1), ("stream 1", 2), ("stream 2", 1), ("stream 3", 1)]
    assert sorted(marks) == [(0, 2, True), (1, 1, True), (2, 1, True)]


def test_rows_of_a_stream_keep_their_order_over_lots(buffer: Buffer) -> None:
    take_in(buffer, (2, 1), (1, 1))
    take_in(buffer, (1, 2), (2, 2))
    take_in(buffer, (1, 3))
    ((rows, _),) = delivered(found(buffer, (A, 3), (B, 2)))
    assert [number for name, number in rows if name == "stream 1"] == [1, 2, 3]
    assert [number for name, number in rows if name == "stream 2"] == [1, 2]


def test_rows_that_are_left_out_between_two_streams_are_not_delivered(buffer: Buffer) -> None:
    take_in(buffer, (1, 1), (2, 1), (3, 1))
    ((rows, _),) = delivered(found(buffer, (A, 1), (C, 1)))
    assert rows == [("stream 1", 1), ("stream 3", 1)]


def test_a_large_range_leaves_in_several_batches_that_say_how_far_they_lead(
    buffer: Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ROWS_A_BATCH", 2)
    for number in range(1, 6):
        take_in(buffer, (1, number))
    assert [marks for _, marks in delivered(found(buffer, (A, 5)))] == [
        [(0, 2, False)],
        [(0, 4, False)],
        [(0, 5, True)],
    ]


def test_a_lot_that_leaves_by_itself_is_not_copied(buffer: Buffer) -> None:
    take_in(buffer, *((1, number) for number in range(1, 50)))
    ((stored, _),) = gather(together(found(buffer, (A, 49))))
    (segment,) = buffer.streams[A].segments
    assert address(stored) == address(segment.held.lot.stored)


def address(batch: pa.RecordBatch) -> int:
    return int(batch["value"].buffers()[2].address)


def test_a_range_of_nothing_is_done_at_once() -> None:
    nothing = FoundRange(A, "", ())
    assert delivered({3: nothing}) == [([], [(3, None, True)])]
