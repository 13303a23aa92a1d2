"""Planned ranges as batches of rows, lot by lot: rows that arrived together leave together.

Source: ``docs/architecture.md#rules``, rule 3 (order within a stream); ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from wallaroo_spark.columnar import STORED_SCHEMA, RowsOf
from wallaroo_spark.inner.rows import Mark, no_rows, pack
from wallaroo_spark.references import Reference
from wallaroo_spark.worker.buffer.buffer import FoundRange
from wallaroo_spark.worker.buffer.segments import LotSlice

ROWS_A_BATCH = 5_000
"""Rows to gather before a batch is sent, so that many small slices do not become many small batches.

A lot with this many rows is sent without gathering, which costs a copy. A choice.
"""
BYTES_A_BATCH = 1 << 20
"""Bytes to gather before a batch is sent, whatever its rows. A choice; it bounds the copied memory."""


class _Part(NamedTuple):
    """One slice of a batch."""

    range: int
    """Index of its range in the request."""
    slice: LotSlice
    """The rows."""
    reference: Reference
    """Reference that is reached behind the rows."""


def gather(found: Mapping[int, FoundRange]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Stored columns in batches of a sensible size, each with what :func:`.rows.unpack` makes rows and marks of.

    Rows leave in the order in which they came in, whatever stream they are of.
    """
    parts = [_Part(index, *delivered) for index, one in found.items() for delivered in one.slices]
    # A later lot has a higher serial, and within a lot a stream's rows are in order: so they stay in order.
    parts.sort(key=lambda part: (part.slice.serial, part.slice.low))
    left = Counter(part.range for part in parts)
    marks: dict[int, Mark] = {index: (index, None, True) for index in found if index not in left}
    batch: list[_Part] = []
    rows = size = 0
    for part in parts:
        left[part.range] -= 1
        marks[part.range] = (part.range, part.reference, not left[part.range])
        batch.append(part)
        rows, size = rows + part.slice.high - part.slice.low, size + part.slice.size
        if rows >= ROWS_A_BATCH or size >= BYTES_A_BATCH:
            yield _columns(batch), _text(batch, found, marks)
            batch, marks, rows, size = [], {}, 0, 0
    if marks:
        yield _columns(batch), _text(batch, found, marks)


def _text(batch: list[_Part], found: Mapping[int, FoundRange], marks: Mapping[int, Mark]) -> bytes:
    of = []
    for part in batch:
        lot_slice, one = part.slice, found[part.range]
        of.append(
            RowsOf(
                lot_slice.instance, one.name, one.key.stream_id, lot_slice.received_at, lot_slice.high - lot_slice.low
            )
        )
    return pack(marks.values(), of)


NOTHING_YET = (no_rows(STORED_SCHEMA), _text([], {}, {}))
"""The heartbeat of a read that waits: neither rows nor marks."""


def _columns(batch: list[_Part]) -> pa.RecordBatch:
    stored = list(_stored([part.slice for part in batch]))
    if not stored:
        return no_rows(STORED_SCHEMA)
    return pa.concat_batches(stored) if len(stored) > 1 else stored[0]


def _stored(slices: list[LotSlice]) -> Iterator[pa.RecordBatch]:
    """The columns of these slices, lot by lot; slices that follow each other in a lot are not copied."""
    begin = 0
    for end in range(1, len(slices) + 1):
        if end < len(slices) and slices[end].lot is slices[begin].lot:
            continue
        mine, begin = slices[begin:end], end
        low, high = mine[0].low, mine[-1].high
        stored = mine[0].lot.stored
        if high - low == sum(lot_slice.high - lot_slice.low for lot_slice in mine):
            yield stored.slice(low, high - low)
        else:
            yield stored.take(
                pa.array(np.concatenate([np.arange(lot_slice.low, lot_slice.high) for lot_slice in mine]))
            )
