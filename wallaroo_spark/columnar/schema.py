"""The rows that Spark sees, and the part of them that a worker keeps for each message.

Source: ``design.md``, section Rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.protocol import Flags

ROW_DDL = (
    "instance STRING, stream STRING, stream_id BIGINT, message_id BIGINT, event_time TIMESTAMP, "
    "key BINARY, value BINARY, flags SMALLINT, received_at TIMESTAMP"
)
"""The row table in Spark's DDL. Every column is nullable, as Spark makes them when it is not told otherwise."""

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
"""The row table as Arrow: what Spark makes of :data:`ROW_DDL`."""

STORED_SCHEMA = pa.schema([ROW_SCHEMA.field(name) for name in ("message_id", "event_time", "key", "value", "flags")])
"""What a worker keeps of a message; the rest of a row is the same for a whole batch."""


def to_rows(
    stored: pa.RecordBatch,
    *,
    instance: str,
    stream: str,
    stream_id: int,
    received_at: int,
    include_boundaries: bool,
) -> pa.RecordBatch:
    """Rows of :data:`ROW_SCHEMA` from stored messages of one stream, in their order.

    ``stream_id`` is the u64 of the wire, whose bits become the bigint; ``received_at`` is in µs since 1970 UTC.
    BOUNDARY messages are left out unless ``include_boundaries``. Columns that are taken over whole are not copied.
    """
    if not include_boundaries:
        boundaries = pc.not_equal(pc.bit_wise_and(stored["flags"], pa.scalar(int(Flags.BOUNDARY), pa.int16())), 0)
        if pc.any(boundaries).as_py():
            stored = stored.filter(pc.invert(boundaries))
    count = stored.num_rows
    signed_id = int(np.uint64(stream_id).view(np.int64))
    columns = {name: stored[name] for name in STORED_SCHEMA.names} | {
        "instance": pa.repeat(pa.scalar(instance, pa.string()), count),
        "stream": pa.repeat(pa.scalar(stream, pa.string()), count),
        "stream_id": pa.repeat(pa.scalar(signed_id, pa.int64()), count),
        "received_at": pa.repeat(pa.scalar(received_at, _TIME), count),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in ROW_SCHEMA.names], schema=ROW_SCHEMA)
