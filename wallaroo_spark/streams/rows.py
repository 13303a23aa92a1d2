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
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any

import pyarrow as pa

from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, moment_of, rfc3339


def batch_of(schema: pa.Schema, rows: int, **values: Any) -> pa.RecordBatch:
    """A batch of ``rows`` rows: a list or an array is a column, another value is in every row, and the rest is null."""
    return pa.RecordBatch.from_arrays([_column(field, rows, values.get(field.name)) for field in schema], schema=schema)


def _column(field: pa.Field, rows: int, value: Any) -> pa.Array:
    if isinstance(value, list):
        return pa.array(value, field.type)
    if isinstance(value, pa.Array):
        return value
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


_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<bigint>": pa.list_(pa.int64()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
"""The types of columns: those of Spark's DDL, and those of Arrow."""


def schema_of(ddl: str, optional: str = "") -> pa.Schema:
    """The Arrow schema of columns in Spark's DDL; only the columns ``optional``, names with spaces, may be null."""
    columns = (column.split(" ") for column in ddl.split(", "))
    return pa.schema([pa.field(name.strip("`"), _TYPES[kind], name in optional.split()) for name, kind in columns])


INPUT_DDL = "stream string, partition int, rank int, origin string, sequence bigint, place int, event binary"
INPUT = schema_of(INPUT_DDL, optional="event")
"""One event of a key; ``event`` is encoded by the controller's format, and null where only time has passed. Every
column of a source is nullable in Spark."""

RECORDS_DDL = (
    "`offset` bigint, written_at timestamp, id string, source string, type string, subject string, time timestamp, "
    "datacontenttype string, dataschema string, extensions map<string,string>, data binary"
)
RECORDS = schema_of(RECORDS_DDL, optional="subject time datacontenttype dataschema data")
"""The records of a stream's table; the folders' names have ``partition``. ``written_at`` is the batch's time."""


class HistoryKind(StrEnum):
    """The kinds of rows in the history of instances."""

    BEGAN = "began"
    OUTPUT = "output"
    NACKED = "nacked"
    POINTER = "pointer"
    ENDED = "ended"
    SKIPPED = "skipped"


HISTORY_DDL = (
    "pipeline string, partition int, instance bigint, kind string, at timestamp, version bigint, stage string, "
    "began_at timestamp, output binary, content_type string, target_stream string, target_partition int, "
    "offsets array<bigint>, outcome string, reason string, birth bigint, attempts int"
)
HISTORY = schema_of(
    HISTORY_DDL,
    optional="version stage began_at output content_type target_stream target_partition offsets outcome reason birth "
    "attempts",
)
"""One step of an instance. ``at`` is the time of the batch. ``birth`` is the version of the schema with which the
pipeline was declared first: one that is deleted and declared anew has instances of the same numbers. In a row
``skipped``, ``instance`` is the first skipped offset, and ``offsets`` has the first and the last one."""

OUTBOX = schema_of("instruction binary, records binary", optional="records")
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


OUTPUT_DDL = (
    "stream string, partition int, kind string, target string, first bigint, last bigint, rows int, body binary"
)
OUTPUT = schema_of(OUTPUT_DDL, optional="first last body")
"""One output of a key in a batch, from the operator to the writer of the batch. ``body`` is an Arrow IPC stream of
``rows`` rows; FORGET has none, and TIMER has JSON. ``first`` and ``last`` are the offsets of records."""

_TIME = "time"
_COLUMNS = ("subject", _TIME, "datacontenttype", "dataschema")
"""The optional attributes with a column of their own, in the order in which they come back."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
    return batch_of(
        RECORDS,
        len(events),
        offset=list(range(first, first + len(events))),
        written_at=written_at * 1000,
        id=[event.id for event in events],
        source=[event.source for event in events],
        type=[event.type for event in events],
        extensions=pa.MapArray.from_arrays(ends, pa.array(names, pa.string()), pa.array(values, pa.string())),
        data=[event.data for event in events],
        **{**optional, _TIME: times},
    )


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
    moment = moment_of(text)
    return (moment - _EPOCH) // _MICROSECOND if moment is not None and _FIRST <= moment <= _LAST else None


def _text(micros: int) -> str:
    """The form in which a time is read."""
    return rfc3339(_EPOCH + micros * _MICROSECOND)
