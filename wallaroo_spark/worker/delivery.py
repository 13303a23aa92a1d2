"""Planned ranges as batches of rows, lot by lot: what came in together goes out together.

Source: ``design.md``, rule 3 (order within a stream); ``style.md`` on runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA, RowsOf, to_rows
from wallaroo_spark.worker.buffer import FoundRange
from wallaroo_spark.worker.ledger import Reference
from wallaroo_spark.worker.segment import Piece

ROWS_A_BATCH = 10_000
"""Rows to gather before a batch leaves, so that a stream of small pieces does not become a stream of small batches."""
BYTES_A_BATCH = 4 << 20


@dataclass(frozen=True, slots=True)
class _Part:
    index: int
    piece: Piece
    reference: Reference


def gather(found: Mapping[int, FoundRange], boundaries: bool) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Batches of a sensible size, each with ``[[range index, reference it leads up to, range is done], …]`` as JSON.

    Rows leave in the order in which they came in, whatever stream they are of.
    """
    parts = [_Part(index, *delivered) for index, one in found.items() for delivered in one.pieces]
    # A later lot has a higher serial, and within a lot a stream's rows are in order: so they stay in order.
    parts.sort(key=lambda part: (part.piece.serial, part.piece.low))
    left = Counter(part.index for part in parts)
    marks: dict[int, list[Any]] = {index: [index, None, True] for index in found if index not in left}
    batch: list[_Part] = []
    rows = size = 0
    for part in parts:
        left[part.index] -= 1
        marks[part.index] = [part.index, part.reference, not left[part.index]]
        batch.append(part)
        rows, size = rows + part.piece.high - part.piece.low, size + part.piece.size
        if rows >= ROWS_A_BATCH or size >= BYTES_A_BATCH:
            yield _rows(batch, found, boundaries), _text(marks)
            batch, marks, rows, size = [], {}, 0, 0
    if marks:
        yield _rows(batch, found, boundaries), _text(marks)


def _text(marks: Mapping[int, list[Any]]) -> bytes:
    return json.dumps(list(marks.values())).encode()


def _rows(batch: list[_Part], found: Mapping[int, FoundRange], boundaries: bool) -> pa.RecordBatch:
    if not batch:
        return pa.RecordBatch.from_pylist([], schema=ROW_SCHEMA)
    of = [
        RowsOf(
            part.piece.instance,
            found[part.index].name,
            found[part.index].key.stream_id,
            part.piece.received_at,
            part.piece.high - part.piece.low,
        )
        for part in batch
    ]
    stored = list(_stored([part.piece for part in batch]))
    whole = pa.concat_batches(stored) if len(stored) > 1 else stored[0]
    return to_rows(whole, of, include_boundaries=boundaries)


def _stored(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
    """The columns of these pieces, lot by lot; where they lie one behind the other they are not copied."""
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
