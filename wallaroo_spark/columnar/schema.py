"""The rows that Spark reads, and the columns that a worker stores for each message.

Source: ``docs/architecture.md#rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class RowsOf(NamedTuple):
    """Metadata shared by the next ``rows`` rows."""

    instance: str
    """Name of the connector instance."""
    stream: str
    """Name of the stream."""
    stream_id: int
    """Id of the stream, u64 as on the wire; its bits become the bigint."""
    received_at: int
    """Time of arrival in µs since 1970 UTC."""
    rows: int
    """Number of rows."""


def to_rows(stored: pa.RecordBatch, of: Sequence[RowsOf], *, include_boundaries: bool) -> pa.RecordBatch:
    """Rows of :data:`ROW_SCHEMA` from stored messages, in the same order. ``of`` is the metadata of all of them.

    BOUNDARY messages are left out unless ``include_boundaries``. Columns that need no change are not copied.
    """
    stream_ids = np.array([one.stream_id for one in of], dtype=np.uint64).view(np.int64)
    counts = np.array([one.rows for one in of])
    columns = {name: stored[name] for name in STORED_SCHEMA.names} | {
        "instance": _repeated(pa.array([one.instance for one in of], pa.string()), counts),
        "stream": _repeated(pa.array([one.stream for one in of], pa.string()), counts),
        "stream_id": _repeated(pa.array(stream_ids), counts),
        "received_at": _repeated(pa.array([one.received_at for one in of], _TIME), counts),
    }
    rows = pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)
    if not include_boundaries:
        boundaries = stored["flags"].to_numpy() & np.int16(Flags.BOUNDARY) != 0
        if boundaries.any():
            return rows.filter(pa.array(~boundaries))
    return rows


def _repeated(values: pa.Array, counts: NDArray[np.int64]) -> pa.Array:
    """Repeat each value for as many rows as its metadata has."""
    if len(values) == 1 or len(values.unique()) == 1:
        return pa.repeat(values[0], int(counts.sum()))
    return values.take(pa.array(np.repeat(np.arange(len(values)), counts)))
