"""Rows on their way from a worker: stored columns, and a text with what they have in common and the marks.

The text begins with columns of numbers, as many as its head says; JSON with the names and references follows them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA, CommonColumns, to_rows
from wallaroo_spark.references import Reference

Mark = tuple[int, Reference | None, bool]
"""A range's index, the reference that its rows now lead up to (None: it had none), and whether the range is done."""
_HEAD = struct.Struct("<I")
_COLUMNS = 3


def pack(marks: Sequence[Mark], common: CommonColumns) -> bytes:
    """The text that goes with stored columns: the marks, and what rows have in common."""
    columns = [common.stream, common.receipt, common.rows]
    names = {
        "marks": list(zip(*marks, strict=True)),
        "streams": list(zip(*common.streams, strict=True)),
        "receipts": list(zip(*common.receipts, strict=True)),
    }
    numbers = [column.astype("<i4", copy=False).tobytes() for column in columns]
    return b"".join([_HEAD.pack(len(common.rows)), *numbers, json.dumps(names).encode()])


def unpack(stored: pa.RecordBatch, text: bytes, *, boundaries: bool) -> tuple[pa.RecordBatch, list[Mark]]:
    """The rows that Spark sees, and the marks, of what a worker sends. What is the same for all is added here."""
    (count,) = _HEAD.unpack_from(text)
    numbers = np.frombuffer(text, "<i4", _COLUMNS * count, _HEAD.size).reshape(_COLUMNS, count)
    names = json.loads(text[_HEAD.size + numbers.nbytes :])
    marks: list[Mark] = list(zip(*names["marks"], strict=True))
    if not count:
        return no_rows(ROW_SCHEMA), marks
    streams, receipts = (list(zip(*names[name], strict=True)) for name in ("streams", "receipts"))
    stream, receipt, rows = numbers
    common = CommonColumns(streams, receipts, stream, receipt, rows)
    return to_rows(stored, common, include_boundaries=boundaries), marks


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
