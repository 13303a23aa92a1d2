"""Converts Arrow columns to bytes, for stores without types."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.errors import SinkError


def checked_columns(found: Sequence[str], known: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Raise :class:`SinkError` when a needed column is missing, or a column is unknown to the sink or repeated."""
    missing = [name for name in needed if name not in found]
    strange = [name for name in found if name not in known]
    if missing or strange or len(set(found)) < len(found):
        problem = "column " + (
            f"{missing[0]} is missing" if missing else f"{strange[0]} is unknown" if strange else "names repeat"
        )
        raise SinkError(
            f"{where}: {problem}; it takes the columns {', '.join(known)}, and the rows have {', '.join(found)}: "
            "select and rename them first",
            code="sink-columns",
            columns=list(found),
        )


def as_bytes(column: pa.Array, name: str, where: str) -> pa.Array:
    """Convert a column to ``binary``: binary unchanged, text as UTF-8; numbers, booleans, dates and times as text.

    Raises :class:`SinkError` for structs, lists, maps and other types that have no text form.
    """
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
            kind = column.type
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
            return column.cast(pa.binary())
        if pa.types.is_nested(kind):
            raise pa.ArrowNotImplementedError(f"{kind} has no text of its own")
        return pc.cast(column, pa.string()).cast(pa.binary())
    except pa.ArrowException as error:
        raise SinkError(
            f"{where}: column {name} of type {kind} cannot be written: {error}; turn it into a string or binary first, "
            "for instance with to_json",
            code="sink-columns",
            column=name,
            type=str(kind),
        ) from error
