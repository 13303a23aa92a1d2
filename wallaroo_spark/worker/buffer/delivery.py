"""Planned ranges as batches of rows, lot by lot: rows that arrived together are delivered together.

Source: ``docs/architecture.md#rules``, rule 3 (order within a stream); ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar import STORED_SCHEMA
from wallaroo_spark.inner.rows import Marks, RowsByRange, no_rows, pack
from wallaroo_spark.worker.buffer.found import FoundRanges, Slices
from wallaroo_spark.worker.buffer.segments import numbered

ROWS_A_BATCH = 5_000
"""Rows to gather before a batch is sent, so that many small slices do not become many small batches.

A lot with this many rows is sent without gathering, which costs a copy.
"""
BYTES_A_BATCH = 1 << 20
"""Bytes to gather before a batch is sent, whatever its rows. It bounds the copied memory."""


def gather(found: FoundRanges) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Stored columns in batches of a sensible size, each with the metadata that :class:`.rows.Unpacker` needs.

    The rows of all streams are in the order in which they arrived.
    """
    slices = found.slices
    # A later lot has a higher serial, and within a lot a stream's rows are in order, so this keeps their order.
    slices = slices[np.lexsort((slices.low, slices.lot, slices.serial))]
    last = _last_of_each(slices.range)
    done = np.zeros(len(slices), np.bool_)
    done[last] = True
    unnamed = set(found.streams)
    if empty := sorted(unnamed.difference(slices.range.tolist())):
        count = len(empty)
        marks = Marks(
            np.array(empty, np.int64), np.zeros(count, np.uint64), np.ones(count, np.bool_), dict.fromkeys(range(count))
        )
        yield no_rows(STORED_SCHEMA), pack(marks, _NOTHING, {})
    for begin, end in _batches(slices):
        part = slices[begin:end]
        ends = _last_of_each(part.range)
        ranges = part.range[ends]
        others: dict[int, str | None] = {}
        if found.texts:
            places = zip(*(column[ends].tolist() for column in (part.range, part.serial, part.low)), strict=True)
            others = {at: found.texts[place] for at, place in enumerate(places) if place in found.texts}
        new = {index: found.streams[index] for index in ranges.tolist() if index in unnamed}
        unnamed.difference_update(new)
        marks = Marks(ranges, part.last_id[ends], done[begin:end][ends], others)
        yield _stored(found, part), pack(marks, _entries(found, part, ranges), new)


def _last_of_each(ranges: NDArray[np.int64]) -> NDArray[np.intp]:
    """The index at which each range occurs for the last time, in the order of the ranges' numbers."""
    _, places = np.unique(ranges[::-1], return_index=True)
    return len(ranges) - 1 - places


def _batches(slices: Slices) -> Iterator[tuple[int, int]]:
    """The slices of each batch, as the index of the first and the index behind the last."""
    rows, sizes = np.cumsum(slices.high - slices.low), np.cumsum(slices.size)
    begin = rows_before = size_before = 0
    while begin < len(slices):
        full = min(
            np.searchsorted(rows, rows_before + ROWS_A_BATCH), np.searchsorted(sizes, size_before + BYTES_A_BATCH)
        )
        end = min(int(full) + 1, len(slices))
        yield begin, end
        begin, rows_before, size_before = end, int(rows[end - 1]), int(sizes[end - 1])


def _entries(found: FoundRanges, slices: Slices, ranges: NDArray[np.int64]) -> RowsByRange:
    """An entry for each slice; ``ranges`` are the ranges that have a mark, in order."""
    most = max(len(found.receipts[number]) for number in np.unique(slices.lot).tolist())
    pairs, receipt = np.unique(slices.lot * most + slices.receipt, return_inverse=True)
    return RowsByRange(
        np.searchsorted(ranges, slices.range).astype(np.int32),
        receipt.astype(np.int32),
        (slices.high - slices.low).astype(np.int32),
        [found.receipts[pair // most][pair % most] for pair in pairs.tolist()],
    )


_NO_NUMBERS = np.empty(0, np.int32)
_NOTHING = RowsByRange(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, [])
_NO_MARKS = Marks(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.bool_), {})
NOTHING_YET = (no_rows(STORED_SCHEMA), pack(_NO_MARKS, _NOTHING, {}))
"""The heartbeat of a read that waits: neither rows nor marks."""


def _stored(found: FoundRanges, slices: Slices) -> pa.RecordBatch:
    """The columns of slices, lot by lot; slices that follow each other in a lot are not copied."""
    edges = np.flatnonzero(np.diff(slices.lot)) + 1
    begins, ends = [0, *edges.tolist()], [*edges.tolist(), len(slices)]
    parts = [_of_lot(found, slices[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


def _of_lot(found: FoundRanges, slices: Slices) -> pa.RecordBatch:
    stored = found.lots[int(slices.lot[0])].stored
    counts = slices.high - slices.low
    low, high = int(slices.low[0]), int(slices.high[-1])
    if high - low == int(counts.sum()):
        return stored.slice(low, high - low)
    return stored.take(pa.array(numbered(slices.low, counts)))
