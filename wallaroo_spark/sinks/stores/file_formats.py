"""The formats of files. Each is a function that writes record batches of one schema to a file."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sidecar.arrow_ipc import write_arrow

_GATHERED_BYTES = 64 << 20
"""Least bytes in memory of a row group of a Parquet file, except of the last one.

A choice: readers take a row group at once, and small ones cost them time.
"""

Write = Callable[[Any, pa.Schema, Iterable[pa.RecordBatch]], None]


def _parquet(stream: Any, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    with parquet.ParquetWriter(stream, schema, compression="snappy") as writer:
        for table in _gathered(rows):
            writer.write_table(table)


def _arrow(stream: Any, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    write_arrow(stream, rows, schema=schema, compression="lz4", random_access=True)


def _json(stream: Any, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    for piece in rows:
        columns = [_plain_column(column, name) for name, column in zip(schema.names, piece.columns, strict=True)]
        lines = (encode(dict(zip(schema.names, row, strict=True))) for row in zip(*columns, strict=True))
        stream.write("".join(f"{line}\n" for line in lines).encode())


FORMATS: dict[str, Write] = {"parquet": _parquet, "json": _json, "arrow": _arrow}
"""The functions that write rows to a binary stream, by the name of the format, which is also the file suffix."""


def _gathered(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for piece in rows:
        gathered.append(piece)
        size += piece.nbytes
        if size >= _GATHERED_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _plain_column(column: pa.Array, name: str) -> list[Any]:
    """The values of a column in the form for JSON: bytes as base64, decimals as text, dates and times as ISO 8601."""
    kind = column.type
    values: list[Any] = column.to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return values
    try:
        return [_plain(value, kind) for value in values]
    except TypeError as error:
        raise SinkError(
            f"column {name} of type {kind} cannot be written as JSON: {error}; convert it to a string first",
            code="sink-columns",
            column=name,
        ) from error


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Infinity")
        )
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if pa.types.is_decimal(kind):
        return str(value)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return value.isoformat()
    if pa.types.is_map(kind):
        return {str(_plain(key, kind.key_type)): _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_plain(item, kind.value_type) for item in value]
    raise TypeError(f"no rule for {type(value).__name__}")
