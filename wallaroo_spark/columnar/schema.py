"""The rows that Spark reads, and the columns that a worker stores for each message.

Source: ``docs/architecture.md#rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.protocol import Flags

ROW_DDL = (
    "instance STRING, stream STRING, stream_id BIGINT, message_id BIGINT, event_time TIMESTAMP, "
    "key BINARY, value BINARY, flags SMALLINT, received_at TIMESTAMP"
)
"""Schema of the rows as Spark DDL. Every column is nullable, which is Spark's default."""

_TIME = pa.timestamp("us", tz="UTC")

ROW_SCHEMA = pa.schema(
    [
        ("instance", pa.string()),
        ("stream", pa.string()),
        ("stream_id", pa.int64()),
        ("message_id", pa.int64()),
        ("event_time", _TIME),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("flags", pa.int16()),
        ("received_at", _TIME),
    ]
)
"""Schema of the rows in Arrow, as Spark derives it from :data:`ROW_DDL`."""

STORED_SCHEMA = pa.schema([ROW_SCHEMA.field(name) for name in ("message_id", "event_time", "key", "value", "flags")])
"""The columns that a worker stores for each message; the other columns are constant for a stream and arrival."""


HEADERS = pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
"""The column of a record's headers, with the option ``includeHeaders``; named and typed as by Spark's Kafka source."""

CORRUPT = pa.field("error_bytes", pa.binary())
"""The column of a record batch that cannot be read, with the option ``includeCorrupt``."""


def row_ddl(*, headers: bool, corrupt: bool) -> str:
    """:data:`ROW_DDL` with the columns that these options add."""
    return ROW_DDL + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>" * headers + ", error_bytes BINARY" * corrupt


def row_schema(*, headers: bool, corrupt: bool) -> pa.Schema:
    """:data:`ROW_SCHEMA` with the columns that these options add."""
    return pa.schema([*ROW_SCHEMA, *[HEADERS] * headers, *[CORRUPT] * corrupt])


@dataclass(frozen=True, eq=False)
class CommonColumns:
    """Metadata of rows as columns: entry n is shared by the next ``rows[n]`` rows."""

    streams: Sequence[tuple[str, int]]
    """The name and the id of each stream, u64 as on the wire; its bits become the bigint."""
    receipts: Sequence[tuple[str, int]]
    """Instances, each with a time of receipt in µs since 1970 UTC."""
    stream: NDArray[np.int32]
    """Indexes in ``streams``."""
    receipt: NDArray[np.int32]
    """Indexes in ``receipts``."""
    rows: NDArray[np.int32]
    """Number of rows that share each entry."""

    @classmethod
    def one(cls, stream: tuple[str, int], receipt: tuple[str, int], rows: int) -> CommonColumns:
        """The columns of ``rows`` rows of one stream and one time of receipt."""
        first = np.zeros(1, np.int32)
        return cls([stream], [receipt], first, first, np.array([rows], np.int32))

    def columns(self) -> dict[str, pa.Array]:
        """The columns of all rows, by name."""
        stream_ids = np.array([number for _, number in self.streams], dtype=np.uint64).view(np.int64)
        stream, receipt = np.repeat(self.stream, self.rows), np.repeat(self.receipt, self.rows)
        return {
            "instance": _picked(pa.array([name for name, _ in self.receipts], pa.string()), receipt),
            "stream": _picked(pa.array([name for name, _ in self.streams], pa.string()), stream),
            "stream_id": _picked(pa.array(stream_ids), stream),
            "received_at": _picked(pa.array([moment for _, moment in self.receipts], _TIME), receipt),
        }


def to_rows(stored: pa.RecordBatch, common: CommonColumns, *, include_boundaries: bool) -> pa.RecordBatch:
    """Rows of :data:`ROW_SCHEMA` from stored messages, in their order; ``common`` has the metadata of all of them.

    BOUNDARY messages are left out unless ``include_boundaries``. Columns that need no change are not copied.
    """
    columns = {name: stored[name] for name in STORED_SCHEMA.names} | common.columns()
    rows = pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)
    if not include_boundaries:
        boundaries = stored["flags"].to_numpy() & np.int16(Flags.BOUNDARY) != 0
        if boundaries.any():
            return rows.filter(pa.array(~boundaries))
    return rows


def _picked(values: pa.Array, numbers: NDArray[np.int32]) -> pa.Array:
    """Look up each number in ``values``."""
    if len(values) == 1 or len(values.unique()) == 1:
        return pa.repeat(values[0], len(numbers))
    return values.take(pa.array(numbers))
