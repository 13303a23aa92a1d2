"""Events of CloudEvents 1.0 as rows of a stream's table, and back.

The attributes ``subject``, ``time``, ``datacontenttype`` and ``dataschema`` have columns, all other attributes stand in
the map ``extensions``. ``specversion`` is always 1.0 and has no column. An event comes back from its row exactly,
except that its attributes have the order of :func:`canonical`. The column ``time`` is a timestamp in microseconds. If
its text would come back in another form (another time zone, nanoseconds, no valid time), the text stands in
``extensions`` under the name ``time``, which no extension can have. Source: ``docs/pipelines/engine.md#tables``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from wallaroo_spark.pipelines.controller.messages.values import CloudEvent
from wallaroo_spark.streams.rows import RECORDS

_TIME = "time"
_COLUMNS = ("subject", _TIME, "datacontenttype", "dataschema")
"""The optional attributes with a column of their own, in the order of :func:`canonical`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 2, tzinfo=UTC) - _EPOCH
_LAST = datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH


def canonical(event: CloudEvent) -> CloudEvent:
    """The event as it comes back from a table: the attributes with columns first, then the extensions in their order.

    Of an attribute that stands there twice, the last value stays.
    """
    if not event.attributes:
        return event
    values = dict(event.attributes)
    first = tuple((name, values.pop(name)) for name in _COLUMNS if name in values)
    return event._replace(attributes=(*first, *values.items()))


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
