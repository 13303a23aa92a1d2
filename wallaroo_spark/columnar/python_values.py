"""Arrow columns as Python values, also where Python does not have the value.

Spark's strings may have bytes that are not UTF-8, as ``CAST(value AS STRING)`` makes them of any message, and its times
may be in years that Python does not have. One such value must not end a query.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as is_


def python_values(column: pa.Array) -> list[Any]:
    """The values of a column as Python has them.

    In a text that is not UTF-8, wrong bytes are replaced by U+FFFD. A date or time that is in no year from 1 to 9999 is
    a text in ISO 8601.
    """
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (ValueError, OverflowError):
        lenient = column.cast(_lenient(column.type))
    return [_value(column[place], lenient[place], column.type) for place in range(len(column))]


def python_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts, with the values of :func:`python_values`."""
    columns = [python_values(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def with_valid_texts(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with U+FFFD in place of bytes that are not UTF-8, for readers that refuse rows with such a text.

    Raises ``pyarrow.ArrowInvalid`` or ``TypeError`` for a column within whose values there is also a time that Python
    does not have.
    """
    try:
        rows.validate(full=True)
        return rows
    except pa.ArrowInvalid:
        return pa.record_batch([_with_valid_texts(column) for column in rows.columns], schema=rows.schema)


def _with_valid_texts(column: pa.Array) -> pa.Array:
    try:
        column.validate(full=True)
        return column
    except pa.ArrowInvalid:
        return pa.array(python_values(column), column.type)


def _value(exact: pa.Scalar, lenient: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return exact.as_py()
    except (ValueError, OverflowError):
        return _text(lenient.as_py(), kind)


def _lenient(kind: pa.DataType) -> pa.DataType:
    """The type in which every value of a type is one that Python has."""
    if is_.is_string(kind) or is_.is_large_string(kind):
        return pa.large_binary()
    if is_.is_timestamp(kind) or is_.is_date(kind):
        return pa.string()
    if is_.is_map(kind):
        return pa.map_(_lenient(kind.key_type), _lenient(kind.item_type))
    if is_.is_struct(kind):
        return pa.struct([(field.name, _lenient(field.type)) for field in kind])
    if is_.is_list(kind):
        return pa.list_(_lenient(kind.value_type))
    return kind


def _text(value: Any, kind: pa.DataType) -> Any:
    """A value of the lenient type in the form of its own type, with texts in place of what Python does not have."""
    if value is None:
        return None
    if is_.is_string(kind) or is_.is_large_string(kind):
        return value.decode(errors="replace")
    if is_.is_timestamp(kind) or is_.is_date(kind):
        return value.replace(" ", "T", 1)
    if is_.is_map(kind):
        return [(_text(key, kind.key_type), _text(item, kind.item_type)) for key, item in value]
    if is_.is_struct(kind):
        return {field.name: _text(value[field.name], field.type) for field in kind}
    if is_.is_list(kind):
        return [_text(item, kind.value_type) for item in value]
    return value
