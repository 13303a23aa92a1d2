"""The Arrow schemas of an application's files: inputs, carried messages, records, history and messages for gateways.

Source: ``docs/pipelines/engine.md#files``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import pyarrow as pa


def batch_of(schema: pa.Schema, rows: int, **values: Any) -> pa.RecordBatch:
    """A batch of ``rows`` rows: a list is a column, another value is in every row, and other columns are null."""
    return pa.RecordBatch.from_arrays([_column(field, rows, values.get(field.name)) for field in schema], schema=schema)


def _column(field: pa.Field, rows: int, value: Any) -> pa.Array:
    if isinstance(value, list):
        return pa.array(value, field.type)
    return pa.nulls(rows, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), rows)


class Rank(IntEnum):
    """The order of a key's events within one batch; the rank comes first, then origin, sequence and place."""

    DECLARED = 0
    """A declaration of the schema."""
    CARRIED = 1
    """A message that another key has carried: its origin is that key, its sequence the number of the message."""
    RECEIVED = 2
    """A message of a gateway: origin: the gateway's generation; sequence: the file; place: the row in it."""
    DUE = 3
    """No event: a timer of the key is due."""


INPUT = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("place", pa.int32(), nullable=False),
        pa.field("event", pa.binary()),
    ]
)
"""One event of a key; ``event`` is encoded by the controller's format, and null where only time has passed."""
INPUT_DDL = "stream string, partition int, rank int, origin string, sequence bigint, place int, event binary"
"""INPUT as Spark's DDL. Every column of a source is nullable there."""

RECORDS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("written_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("subject", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("datacontenttype", pa.string()),
        pa.field("dataschema", pa.string()),
        pa.field("extensions", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("data", pa.binary()),
    ]
)
"""The records of a stream's table; the folders' names have ``partition``. ``written_at`` is the batch's time."""


class HistoryKind(StrEnum):
    """The kinds of rows in the history of instances."""

    BEGAN = "began"
    OUTPUT = "output"
    NACKED = "nacked"
    POINTER = "pointer"
    ENDED = "ended"
    SKIPPED = "skipped"


HISTORY = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("instance", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("version", pa.int64()),
        pa.field("stage", pa.string()),
        pa.field("began_at", pa.timestamp("us", "UTC")),
        pa.field("output", pa.binary()),
        pa.field("content_type", pa.string()),
        pa.field("target_stream", pa.string()),
        pa.field("target_partition", pa.int32()),
        pa.field("offsets", pa.list_(pa.int64())),
        pa.field("outcome", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("birth", pa.int64()),
        pa.field("attempts", pa.int32()),
    ]
)
"""One step of an instance. ``at`` is the time of the batch. ``birth`` is the version of the schema with which the
pipeline was declared first: one that is deleted and declared anew has instances of the same numbers. In a row
``skipped``, ``instance`` is the first skipped offset, and ``offsets`` has the first and the last one."""

OUTBOX = pa.schema([pa.field("instruction", pa.binary(), nullable=False), pa.field("records", pa.binary())])
"""One message for a gateway, in order for each key.

``instruction`` is encoded by the controller's format. ``records`` has the records of a DeliverRecords, as a tuple of
CloudEvents in the same format, where the batch has all of them; else the gateway reads them from the table.
"""


class OutputKind(StrEnum):
    """The kinds of a batch's output."""

    RECORDS = "records"
    """Records of one partition; the body has the schema RECORDS."""
    HISTORY = "history"
    """Rows of the history; the body has the schema HISTORY."""
    CARRIED = "carried"
    """Messages to keys, for a later batch; the body has the schema INPUT."""
    OUTBOX = "outbox"
    """Messages for the gateway ``target``; the body has the schema OUTBOX."""
    FORGET = "forget"
    """The records of the partition before ``first`` are those of a deleted stream; the table loses them."""
    TIMER = "timer"
    """``first`` is the time in milliseconds at which the key is to be woken; null: not at all. The body has the gauges
    of the key after the batch, as JSON."""


OUTPUT = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("target", pa.string(), nullable=False),
        pa.field("first", pa.int64()),
        pa.field("last", pa.int64()),
        pa.field("rows", pa.int32(), nullable=False),
        pa.field("body", pa.binary()),
    ]
)
"""One output of a key in a batch, from the operator to the writer of the batch. ``body`` is an Arrow IPC stream of
``rows`` rows; FORGET has none, and TIMER has JSON. ``first`` and ``last`` are the offsets of records."""
OUTPUT_DDL = (
    "stream string, partition int, kind string, target string, first bigint, last bigint, rows int, body binary"
)
"""OUTPUT as Spark's DDL."""
