"""The Arrow schemas of an application's files (inputs, carried messages, records, history, messages for gateways), and
events of CloudEvents 1.0 as rows of a stream's table.

The attributes ``subject``, ``time``, ``datacontenttype`` and ``dataschema`` have columns, all other attributes stand in
the map ``extensions``. ``specversion`` is always 1.0 and has no column. An event comes back from its row exactly,
except that the attributes with columns come first, then the extensions. The column ``time`` is a timestamp in
microseconds. If its text would come back in another form (another time zone, nanoseconds, no valid time), the text
stands in ``extensions`` under the name ``time``, which no extension can have. Source:
``docs/pipelines/engine.md#tables``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any

import pyarrow as pa

from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent


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


_TIME = "time"
_COLUMNS = ("subject", _TIME, "datacontenttype", "dataschema")
"""The optional attributes with a column of their own, in the order in which they come back."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 2, tzinfo=UTC) - _EPOCH
_LAST = datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH


def as_rows(first: int, events: Sequence[CloudEvent], written_at: int) -> pa.RecordBatch:
    """Rows of the schema RECORDS: ``first`` is the offset of the first event, ``written_at`` is in milliseconds."""
    optional: dict[str, list[str | None]] = {name: [None] * len(events) for name in _COLUMNS}
    times: list[int | None] = [None] * len(events)
    names: list[str] = []
    values: list[str] = []
    ends = [0]
    for place, event in enumerate(events):
        others: dict[str, str] = {}
        for name, value in event.attributes:
            column = optional.get(name)
            if column is None:
                others[name] = value
            else:
                column[place] = value
        text = optional[_TIME][place]
        if text is not None:
            times[place] = moment = _micros(text)
            if moment is None or _text(moment) != text:
                others[_TIME] = text
        names += others
        values += others.values()
        ends.append(len(names))
    columns = [
        pa.array(range(first, first + len(events)), pa.int64()),
        pa.array([written_at * 1000] * len(events), RECORDS.field("written_at").type),
        pa.array([event.id for event in events], pa.string()),
        pa.array([event.source for event in events], pa.string()),
        pa.array([event.type for event in events], pa.string()),
        pa.array(optional["subject"], pa.string()),
        pa.array(times, RECORDS.field(_TIME).type),
        pa.array(optional["datacontenttype"], pa.string()),
        pa.array(optional["dataschema"], pa.string()),
        pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
        ),
        pa.array([event.data for event in events], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def as_events(rows: pa.RecordBatch | pa.Table) -> tuple[CloudEvent, ...]:
    """The events of rows of the schema RECORDS, in their order."""
    return tuple(_events(rows))


def _events(rows: pa.RecordBatch | pa.Table) -> Iterator[CloudEvent]:
    names = ("id", "source", "type", "data", "subject", "datacontenttype", "dataschema")
    columns: list[Iterable[Any]] = [_values(rows.column(name)) for name in names]
    columns.append(_values(rows.column("extensions")) if _has_items(rows) else itertools.repeat((), rows.num_rows))
    columns.append(_values(rows.column(_TIME).cast(pa.int64())))
    for id_, source, kind, data, subject, content, schema, others, moment in zip(*columns, strict=True):
        if subject is None and content is None and schema is None and moment is None and not others:
            yield CloudEvent(id_, source, kind, data)
            continue
        found = dict(others)
        text = found.pop(_TIME, None)
        if text is None and moment is not None:
            text = _text(moment)
        values = zip(_COLUMNS, (subject, text, content, schema), strict=True)
        known = tuple((name, value) for name, value in values if value is not None)
        yield CloudEvent(id_, source, kind, data, (*known, *found.items()))


def _values(column: pa.Array | pa.ChunkedArray) -> Iterable[Any]:
    return itertools.repeat(None, len(column)) if column.null_count == len(column) else column.to_pylist()


def _has_items(rows: pa.RecordBatch | pa.Table) -> bool:
    """Whether a row has extensions."""
    column = rows.column("extensions")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return any(chunk.offsets[0] != chunk.offsets[len(chunk)] for chunk in chunks)


def _micros(text: str) -> int | None:
    """The time of an RFC 3339 text in microseconds since 1970 UTC; None for another text, and out of range.

    The range is a day less than that of Python at both ends: Spark converts a time to the zone of the machine when a
    program collects it, and one time that Python does not have would end the whole query.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            return None
        since = moment - _EPOCH
    except (ValueError, OverflowError):
        return None
    if not _FIRST <= since <= _LAST:
        return None
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _text(micros: int) -> str:
    """The form in which a time is read: UTC, with as many digits of the second as there are (0, 3 or 6)."""
    seconds, fraction = divmod(micros, 1_000_000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError):
        return ""
    if not fraction:
        return f"{moment}Z"
    return f"{moment}.{fraction // 1000:03d}Z" if fraction % 1000 == 0 else f"{moment}.{fraction:06d}Z"
