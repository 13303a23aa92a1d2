"""Values of rows for columns of a database, and what a database would change in them without an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as is_
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine.interfaces import ReflectedColumn

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.stores.table_rows import is_binary, unwritable

_BINARY = (sa.LargeBinary, sa.BINARY, sa.VARBINARY, mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB)
_TIMES = (sa.Date, sa.DateTime, sa.Time)
_NUMBERS = (sa.Boolean, sa.Integer, sa.Numeric, sa.Float, mysql.BIT, mysql.YEAR)
_TAKES: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (is_.is_boolean, (sa.Boolean, sa.Integer, mysql.BIT)),
    (is_.is_integer, (sa.Integer, sa.Numeric, mysql.BIT)),
    (is_.is_floating, (sa.Float,)),
    (is_.is_decimal, (sa.Numeric,)),
    (is_.is_date, (sa.Date, sa.DateTime)),
    (is_.is_timestamp, (sa.DateTime,)),
    (is_.is_time, (sa.Time,)),
    (is_binary, _BINARY),
)
"""The types of columns that take values of an Arrow type as they are. A text is taken by all but numbers, times, bytes.
"""
_TEXT_BYTES = {mysql.TINYTEXT: (1 << 8) - 1, mysql.TEXT: (1 << 16) - 1, mysql.MEDIUMTEXT: (1 << 24) - 1}
_MICROSECONDS = 6


def misfit(name: str, kind: pa.DataType, column: ReflectedColumn) -> str:
    """The reason why a column does not take values of an Arrow type as they are; empty if it may take them."""
    problem = unwritable(name, kind)
    if problem or is_.is_null(kind):
        return problem
    kind, target = kind.value_type if is_.is_dictionary(kind) else kind, column["type"]
    takes = next((types for check, types in _TAKES if check(kind)), None)
    if takes is None:
        fits = _is_text(kind) and not isinstance(target, (*_BINARY, *_TIMES, *_NUMBERS))
    else:
        # Before SQLAlchemy 2.1 a Float is a Numeric.
        fits = isinstance(target, takes) and (sa.Float in takes or not isinstance(target, sa.Float))
    if not fits:
        return f"column {name} is {kind} in the rows and {target} in the table: cast it to the table's type"
    scale = getattr(target, "scale", None)
    if is_.is_decimal(kind) and scale is not None and kind.scale > scale:
        return f"column {name} is {kind} in the rows, and the table keeps {scale} decimal places: cast it to that many"
    return ""


def bind_type(column: ReflectedColumn) -> sa.types.TypeEngine[Any]:
    """The type with which values are handed to SQLAlchemy; most go to the driver package as they are."""
    target = column["type"]
    if isinstance(target, sa.DateTime):
        return sa.DateTime(timezone=target.timezone)
    return next((of() for of in (sa.Date, sa.Time) if isinstance(target, of)), sa.types.NullType())


def values(rows: pa.Array, column: ReflectedColumn, dialect: str) -> list[Any]:
    """The values of a column's rows. Raises :class:`SinkError` for one that the database would change."""
    target = column["type"]
    try:
        rows = rows.dictionary_decode() if is_.is_dictionary(rows.type) else rows
        problem = "is NOT NULL in the table, and null in a row" if rows.null_count and not column["nullable"] else ""
        if _is_text(rows.type):
            problem = problem or _text_problem(rows, target)
        elif isinstance(target, sa.DateTime) or is_.is_time(rows.type):
            rows, moments = _moments(rows, target)
            problem = problem or _fraction_problem(moments, target)
        elif dialect == "sqlite" and is_.is_floating(rows.type) and pc.any(pc.is_nan(rows)).as_py():
            problem = problem or "is not a number in a row, which SQLite keeps as null"
        elif isinstance(target, sa.BINARY) and pc.any(pc.less(pc.binary_length(rows), target.length or 0)).as_py():
            problem = problem or f"has bytes that are shorter than {target.length}, which the database fills up"
        if not problem:
            found: list[Any] = rows.to_pylist()
            return found
    except (pa.ArrowInvalid, ValueError, OverflowError) as error:
        problem = f"has a value that cannot be written ({error})"
    raise SinkError(
        f"column {column['name']} {problem}; filter or convert such rows", code="sink-columns", column=column["name"]
    )


def _is_text(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (is_.is_string, is_.is_large_string, is_.is_string_view))


def _text_problem(rows: pa.Array, target: sa.types.TypeEngine[Any]) -> str:
    if isinstance(target, sa.Enum):
        # A text of digits would be taken for the number of a member.
        strange = sorted(set(pc.unique(rows).to_pylist()) - {None, *target.enums})
        return f"has the text {strange[0][:60]!r}, which is none of {', '.join(target.enums)}" if strange else ""
    if isinstance(target, mysql.SET):
        # A text of digits would be taken for the bits of members.
        texts = set(pc.unique(rows).to_pylist()) - {None}
        strange = sorted(
            text for text in texts if text != ",".join(name for name in target.values if name in text.split(","))
        )
        allowed = f"which is not {','.join(target.values)} or a part of that in its order"
        return f"has the text {strange[0][:60]!r}, {allowed}" if strange else ""
    if isinstance(target, mysql.CHAR) and pc.any(pc.ends_with(rows, " ")).as_py():
        return "has a text with blanks at its end, which the database leaves out of a CHAR"
    longest = _TEXT_BYTES.get(type(target))
    size = pc.utf8_length(rows) if longest is None else pc.binary_length(rows)
    longest = longest or getattr(target, "length", None)
    if longest and pc.any(pc.and_(pc.greater(size, longest), pc.ends_with(rows, " "))).as_py():
        return f"has a text of more than {longest} with blanks at its end, which the database cuts without an error"
    return ""


def _moments(rows: pa.Array, target: sa.types.TypeEngine[Any]) -> tuple[pa.Array, pa.Array]:
    """Times in microseconds, timestamps in UTC, and the same as numbers."""
    if is_.is_time(rows.type):
        rows = rows.cast(pa.time64("us"))
        return rows, rows.cast(pa.int64())
    zoned = rows.cast(pa.timestamp("us")) if is_.is_date(rows.type) else rows
    zoned = zoned.cast(pa.timestamp("us", "UTC"))
    moments = zoned.cast(pa.int64())
    return zoned if getattr(target, "timezone", False) else moments.cast(pa.timestamp("us")), moments


def _fraction_problem(moments: pa.Array, target: sa.types.TypeEngine[Any]) -> str:
    if hasattr(target, "fsp"):
        digits = target.fsp or 0
    else:
        precision = getattr(target, "precision", None)
        digits = _MICROSECONDS if precision is None else precision
    step = 10 ** max(0, _MICROSECONDS - digits)
    kept = pc.multiply(pc.divide(moments, step), step)
    if pc.any(pc.not_equal(kept, moments)).as_py():
        return f"has fractions of a second, of which the table keeps {digits} digits"
    return ""
