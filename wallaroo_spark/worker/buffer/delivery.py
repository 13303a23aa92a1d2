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
from wallaroo_spark.worker.buffer.segments import Piece

ROWS_A_BATCH = 5_000
"""Rows to gather before a batch leaves, so that a stream of small pieces does not become a stream of small batches.

A lot that has this many rows leaves as it is; gathering costs a copy.
"""
BYTES_A_BATCH = 1 << 20


class _Part(NamedTuple):
    range: int
    piece: Piece
    reference: Reference


def gather(found: Mapping[int, FoundRange]) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Stored columns in batches of a sensible size, each with what :func:`.rows.unpack` makes rows and marks of.

    Rows leave in the order in which they came in, whatever stream they are of.
    """
    parts = [_Part(index, *delivered) for index, one in found.items() for delivered in one.pieces]
    # A later lot has a higher serial, and within a lot a stream's rows are in order: so they stay in order.
    parts.sort(key=lambda part: (part.piece.serial, part.piece.low))
    left = Counter(part.range for part in parts)
    marks: dict[int, Mark] = {index: (index, None, True) for index in found if index not in left}
    batch: list[_Part] = []
    rows = size = 0
    for part in parts:
        left[part.range] -= 1
        marks[part.range] = (part.range, part.reference, not left[part.range])
        batch.append(part)
        rows, size = rows + part.piece.high - part.piece.low, size + part.piece.size
        if rows >= ROWS_A_BATCH or size >= BYTES_A_BATCH:
            yield _columns(batch), _text(batch, found, marks)
            batch, marks, rows, size = [], {}, 0, 0
    if marks:
        yield _columns(batch), _text(batch, found, marks)


def _text(batch: list[_Part], found: Mapping[int, FoundRange], marks: Mapping[int, Mark]) -> bytes:
    of = []
    for part in batch:
        piece, one = part.piece, found[part.range]
        of.append(RowsOf(piece.instance, one.name, one.key.stream_id, piece.received_at, piece.high - piece.low))
    return pack(marks.values(), of)


NOTHING_YET = (no_rows(STORED_SCHEMA), _text([], {}, {}))
"""The heartbeat of a read that waits: neither rows nor marks."""


def _columns(batch: list[_Part]) -> pa.RecordBatch:
    stored = list(_stored([part.piece for part in batch]))
    if not stored:
        return no_rows(STORED_SCHEMA)
    return pa.concat_batches(stored) if len(stored) > 1 else stored[0]


def _stored(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
    """The columns of these pieces, lot by lot; pieces that follow each other in a lot are not copied."""
    begin = 0
    for end in range(1, len(pieces) + 1):
        if end < len(pieces) and pieces[end].lot is pieces[begin].lot:
            continue
        mine, begin = pieces[begin:end], end
        low, high = mine[0].low, mine[-1].high
        stored = mine[0].lot.stored
        if high - low == sum(piece.high - piece.low for piece in mine):
            yield stored.slice(low, high - low)
        else:
            yield stored.take(pa.array(np.concatenate([np.arange(piece.low, piece.high) for piece in mine])))
