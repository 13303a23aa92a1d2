"""Rows on their way from a worker: stored columns, and a text with what they have in common and the marks."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa

from wallaroo_spark.columnar import ROW_SCHEMA, RowsOf, to_rows
from wallaroo_spark.references import Reference

Mark = tuple[int, Reference | None, bool]
"""A range's index, the reference that its rows now lead up to (None: it had none), and whether the range is done."""


def pack(marks: Iterable[Mark], of: Iterable[RowsOf]) -> bytes:
    """The text that goes with stored columns: the marks, and what the rows of each of ``of`` have in common."""
    return json.dumps({"marks": list(marks), "of": list(of)}).encode()


def unpack(stored: pa.RecordBatch, text: bytes, *, boundaries: bool) -> tuple[pa.RecordBatch, list[Mark]]:
    """The rows that Spark sees, and the marks, of what a worker sends. What is the same for all is added here."""
    said = json.loads(text)
    of = [RowsOf(*rows) for rows in said["of"]]
    rows = to_rows(stored, of, include_boundaries=boundaries) if of else no_rows(ROW_SCHEMA)
    return rows, [(index, reference, done) for index, reference, done in said["marks"]]


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch without rows."""
    return pa.RecordBatch.from_pylist([], schema=schema)
