"""Planned ranges as batches of rows, lot by lot: rows that arrived together leave together.

Source: ``docs/architecture.md#rules``, rule 3 (order within a stream); ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar import STORED_SCHEMA, CommonColumns
from wallaroo_spark.inner.rows import Mark, no_rows, pack
from wallaroo_spark.references import Reference
from wallaroo_spark.worker.buffer.found import FoundRanges, Slices
from wallaroo_spark.worker.buffer.segments import numbered

ROWS_A_BATCH = 5_000
"""Rows to gather before a batch is sent, so that many small slices do not become many small batches.

A lot with this many rows is sent without gathering, which costs a copy. A choice.
"""
BYTES_A_BATCH = 1 << 20
"""Bytes to gather before a batch is sent, whatever its rows. A choice; it bounds the copied memory."""


def gather(found: FoundRanges) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Stored columns in batches of a sensible size, each with what :func:`.rows.unpack` makes rows and marks of.

    Rows leave in the order in which they came in, whatever stream they are of.
    """
    slices = found.slices
    # A later lot has a higher serial, and within a lot a stream's rows are in order: so they stay in order.
    slices = slices[np.lexsort((slices.low, slices.lot, slices.serial))]
    last = _last_of_each(slices.range)
    done = np.zeros(len(slices), np.bool_)
    done[last] = True
    marks: list[Mark] = [(index, None, True) for index in sorted(found.streams.keys() - set(slices.range.tolist()))]
    for begin, end in _batches(slices):
        part = slices[begin:end]
        ends = _last_of_each(part.range)
        references: list[Reference] = part.last_id[ends].tolist()
        if found.texts:
            places = zip(*(column[ends].tolist() for column in (part.range, part.serial, part.low)), strict=True)
            references = [found.texts.get(at, one) for at, one in zip(places, references, strict=True)]
        indexes = part.range[ends].tolist()
        marks += zip(indexes, references, done[begin:end][ends].tolist(), strict=True)
        yield _stored(found, part), pack(marks, _common(found, part, indexes))
        marks = []
    if marks:
        yield no_rows(STORED_SCHEMA), pack(marks, _NOTHING)


def _last_of_each(ranges: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where each range occurs for the last time, by the numbers of the ranges."""
    _, places = np.unique(ranges[::-1], return_index=True)
    return len(ranges) - 1 - places


def _batches(slices: Slices) -> Iterator[tuple[int, int]]:
    """The slices of each batch: the first, and the one behind the last."""
    rows, sizes = np.cumsum(slices.high - slices.low), np.cumsum(slices.size)
    begin = rows_before = size_before = 0
    while begin < len(slices):
        full = min(
            np.searchsorted(rows, rows_before + ROWS_A_BATCH), np.searchsorted(sizes, size_before + BYTES_A_BATCH)
        )
        end = min(int(full) + 1, len(slices))
        yield begin, end
        begin, rows_before, size_before = end, int(rows[end - 1]), int(sizes[end - 1])


def _common(found: FoundRanges, slices: Slices, indexes: list[int]) -> CommonColumns:
    """What the rows of slices have in common; ``indexes`` are the ranges that they are of, in order."""
    # Receipts are few, because those of a lot are one for each session.
    most = max((len(found.receipts[number]) for number in np.unique(slices.lot).tolist()), default=1)
    pairs, receipt = np.unique(slices.lot * most + slices.receipt, return_inverse=True)
    return CommonColumns(
        [found.streams[index] for index in indexes],
        [found.receipts[pair // most][pair % most] for pair in pairs.tolist()],
        np.searchsorted(np.array(indexes, np.int64), slices.range).astype(np.int32),
        receipt.astype(np.int32),
        (slices.high - slices.low).astype(np.int32),
    )


_NOTHING = CommonColumns([], [], *(np.empty(0, np.int32) for _ in range(3)))
NOTHING_YET = (no_rows(STORED_SCHEMA), pack([], _NOTHING))
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
