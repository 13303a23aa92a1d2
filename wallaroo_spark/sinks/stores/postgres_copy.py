"""Record batches as CSV for PostgreSQL's COPY, and the check that a table takes their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from wallaroo_spark.errors import SinkError

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint16)
# COPY reads an empty field without quotes as NULL, and Arrow writes every text in quotes.
_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")


@dataclass(frozen=True)
class TableColumn:
    """A column of the target table."""

    name: str
    """Its name."""
    type: str
    """Its type, as PostgreSQL writes it."""
    needed: bool
    """Whether every row must have a value: the column is NOT NULL and has no default."""
    given: bool
    """Whether a row may have a value: PostgreSQL does not generate the column's values."""


def check_columns(schema: pa.Schema, table: str, columns: Sequence[TableColumn]) -> None:
    """Raise :class:`SinkError` unless the table takes rows of this schema; columns are matched by name."""
    known = {column.name: column for column in columns}
    for name, kind in zip(schema.names, schema.types, strict=True):
        problem = ""
        if name not in known:
            problem = f"the table has no column {name}; it has {', '.join(known)}: select and rename the rows' columns"
        elif schema.names.count(name) > 1:
            problem = f"the rows have {schema.names.count(name)} columns {name}; rename all but one"
        elif not known[name].given:
            problem = f"PostgreSQL generates the values of column {name}; leave it out of the rows"
        else:
            problem = _misfit(name, kind, known[name].type)
        if problem:
            raise SinkError(f"table {table}: {problem}", code="sink-columns", table=table, column=name)
    for column in columns:
        if column.needed and column.name not in schema.names:
            raise SinkError(
                f"table {table}: column {column.name} is NOT NULL and has no default, and the rows have no such "
                "column; add it to the rows, or give it a default",
                code="sink-columns",
                table=table,
                column=column.name,
            )


def _misfit(name: str, kind: pa.DataType, target: str) -> str:
    """The reason why an Arrow type does not fit a PostgreSQL type; empty if it may fit. COPY finds other misfits."""
    if _is_binary(kind) != (target == "bytea") and not pa.types.is_null(kind):
        return f"column {name} is {kind} in the rows and {target} in the table; binary needs bytea, and bytea binary"
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return f"column {name} is {kind}, which cannot be written; turn it into a string, for instance with to_json"
    return ""


def csv_of(rows: pa.RecordBatch) -> bytes:
    """Rows as CSV without a header, in UTF-8. Timestamps are in UTC, bytes in PostgreSQL's hex format."""
    columns = [_plain(column) for column in rows.columns]
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(columns, names=rows.schema.names), sink, _OPTIONS)
    return bytes(sink.getvalue())


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if _is_binary(kind):
        return hex_of(column)
    if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"):
        return column.cast(pa.timestamp(kind.unit, "UTC"))
    if kind in (pa.string_view(), pa.float16()):
        return column.cast(pa.float32() if kind == pa.float16() else pa.string())
    return column


def hex_of(column: pa.Array) -> pa.Array:
    r"""Binary values as text: ``\x`` and two hexadecimal digits for each byte; null stays null."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data or b"", dtype=np.uint8)[ends[0] : ends[-1]]
    digits = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(_HEX[raw]))
    kind = pa.large_string()
    text = pc.binary_join_element_wise(pa.scalar("\\x", kind), digits, pa.scalar("", kind))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, kind))


def _is_binary(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))
