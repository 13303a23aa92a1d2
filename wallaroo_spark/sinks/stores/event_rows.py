"""Rows as events of a durable stream. Pure. Source: ``docs/sinks.md#durable-streams``."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from wallaroo_spark.api.limits import EVENT_BYTES
from wallaroo_spark.client.events import TEXT_TYPE, encode_value
from wallaroo_spark.columnar.python_values import python_values
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError, bounded_reason
from wallaroo_spark.json_text import dump_json, load_json
from wallaroo_spark.pipelines.schema.cloud_event import (
    LONGEST_TEXT,
    PARTITION_KEY,
    CloudEvent,
    EventProblem,
    attribute_text,
    valid_event,
)
from wallaroo_spark.protocol.reserved import reserved
from wallaroo_spark.sinks.settings import EVENT_FORMATS, StreamSettings
from wallaroo_spark.sinks.stores.staged_rows import as_bytes, checked_columns

COLUMNS, CLOUDEVENTS = EVENT_FORMATS
_ATTRIBUTES = {"id", "source", "type", "subject", "time", "datacontenttype", "dataschema"}
_PAYLOADS = ("data", "value")
_UNUSED = ("stream_id", "flags", "received_at")
_OF_RECEIVER = ("instance", "stream", "message_id", "event_time", "key", *_UNUSED)
KNOWN = (*_PAYLOADS, *sorted(_ATTRIBUTES), "partition", "extensions", *_OF_RECEIVER)
"""The columns that a row may have; ``data`` and ``value`` are two names of one."""
_VERSION = "1.0"
INVALID = "wallaroo.row.invalid"
"""Type of the dead letter of a row."""
_EXAMPLE = 'write {"type": "shop.order.created", "data": {…}}, for example'


class RowEvent(NamedTuple):
    """The event of one row."""

    event: CloudEvent
    """The event; of a row that breaks a rule its dead letter."""
    partition: int | None
    """The partition that the row names; None: that of the event's key."""
    problem: str = ""
    """The rule that the row breaks, with a remedy; empty for a valid event."""


@dataclass(frozen=True)
class RowReader:
    """Makes the events of rows, as the settings of the sink say."""

    settings: StreamSettings

    def events(self, rows: pa.RecordBatch, ids: str, first: int, partitions: int) -> Iterator[RowEvent]:
        """The event of each row; ``ids`` and its number from ``first`` on are the id of one that has no id.

        The stream has so many partitions. Raises :class:`SinkError` for columns that no event can be made of.
        """
        names, where = rows.schema.names, f"sink {self.settings.known_as}"
        payload = next((name for name in _PAYLOADS if name in names), _PAYLOADS[0])
        known = [name for name in KNOWN if name == payload or name not in _PAYLOADS]
        checked_columns(names, [*dict.fromkeys(known)], [payload], where)
        column = rows.column(payload)
        payloads = as_bytes(column, payload, where).to_pylist()
        binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
        plain = self.settings.datacontenttype or ("" if binary else TEXT_TYPE)
        others = [
            name for name in names if name not in (payload, *_UNUSED) and rows.column(name).null_count < rows.num_rows
        ]
        columns = [python_values(rows.column(name)) for name in others]
        values = zip(*columns, strict=True) if columns else itertools.repeat((), rows.num_rows)
        for number, (data, row) in enumerate(zip(payloads, values, strict=True), first):
            given = {name: value for name, value in zip(others, row, strict=True) if value is not None}
            yield self._event(data, given, plain, f"{ids}/{number}", partitions)

    def _event(self, data: bytes | None, given: dict[str, Any], plain: str, id: str, partitions: int) -> RowEvent:
        found: dict[str, Any] = {}
        source = self.settings.source or f"/sinks/{self.settings.known_as}"
        if (instance := given.get("instance")) is not None and (stream := given.get("stream")) is not None:
            # A message of a connector stays in the order of its stream, and is known by its own id. Several messages of
            # a door's client may have one number: those of a request with a token, and of producers in one partition.
            found[PARTITION_KEY] = f"{instance}/{stream}"
            source = instance
            if (number := given.get("message_id")) is not None and not reserved(str(instance)):
                id = f"{stream}/{number}"
        content = data
        try:
            found = _extensions(given.get("extensions")) | found
            if (key := given.get("key")) is not None:
                found[PARTITION_KEY] = _key_text(key)
            if (at := given.get("event_time")) is not None:
                found["time"] = at
            for name in given.keys() & _ATTRIBUTES:
                found[name] = given[name]
            if self.settings.format == CLOUDEVENTS:
                members, content = _structured(data or b"")
                found |= members
            elif content is not None and plain:
                found.setdefault("datacontenttype", plain)
            partition = given.get("partition")
            if partition is not None and not (type(partition) is int and 0 <= partition < partitions):
                raise EventProblem(f"names partition {partition!r}, and there are {partitions}: 0 to {partitions - 1}")
            defaults = {"id": id, "source": source, "type": self.settings.type}
            names = [found.pop(name, "") or default for name, default in defaults.items()]
            texts = [text if type(text) is str else attribute_text(text) for text in names]
            attributes = tuple(
                (name, value if type(value) is str else attribute_text(value)) for name, value in found.items()
            )
            event = CloudEvent(texts[0], texts[1], texts[2], content, attributes)
            return RowEvent(valid_event(event), partition)
        except EventProblem as problem:
            return RowEvent(self._letter(data, id, source, str(problem)), None, str(problem))

    def _letter(self, data: bytes | None, id: str, source: str, problem: str) -> CloudEvent:
        """The dead letter of a row: its payload as it is, unless it is too long, with the reason."""
        attributes = (("failedreason", bounded_reason(problem)), ("failedstream", self.settings.stream))
        # A stream takes no event without a source, and none that comes with it.
        source = str(source)[:LONGEST_TEXT] or f"/sinks/{self.settings.known_as}"
        event = CloudEvent(id[:LONGEST_TEXT], source, INVALID, data, attributes)
        return event if event.size <= EVENT_BYTES else event._replace(data=None)


def _extensions(given: Any) -> dict[str, Any]:
    """The extensions of a row. Raises :class:`EventProblem` for a value that has no names."""
    try:
        return dict(given or ())
    except (TypeError, ValueError):
        raise EventProblem(f"has extensions that are a {type(given).__name__}; give a map of texts") from None


def _structured(payload: bytes) -> tuple[dict[str, Any], bytes | None]:
    """The attributes and the payload of an event in the JSON format of CloudEvents. Raises :class:`EventProblem`."""
    try:
        found = load_json(payload)
    except ValueError as error:
        raise EventProblem(f"is no CloudEvent in JSON: {error}; {_EXAMPLE}") from None
    if type(found) is not dict:
        raise EventProblem(f"is no CloudEvent in JSON, but a JSON {_kind(found)}; {_EXAMPLE}")
    if (version := found.pop("specversion", _VERSION)) != _VERSION:
        raise EventProblem(f"is of CloudEvents {str(version)[:20]!r}, and {_VERSION} is read; write that version")
    data, encoded = found.pop("data", None), found.pop("data_base64", None)
    found = {name: value for name, value in found.items() if value is not None}
    kind = found.get("datacontenttype", "")
    try:
        if encoded is not None:
            return found, base64.b64decode(encoded, validate=True)
        if data is None:
            return found, None
        if type(data) is str and type(kind) is str and "json" in kind:
            # With this content type a text is a JSON string.
            content, plain = dump_json(data), kind
        else:
            content, plain = encode_value(data)
    except (ArgumentTypeError, ArgumentValueError) as error:
        raise EventProblem(f"has data that cannot be kept: {error.message}") from None
    except (ValueError, TypeError) as error:
        raise EventProblem(f"has a data_base64 that is no base64: {error}; {_EXAMPLE}") from None
    found.setdefault("datacontenttype", plain)
    return found, content


def _key_text(key: Any) -> str:
    """The text of a message's key: base64 for bytes that are no text."""
    if isinstance(key, bytes):
        try:
            return key.decode()
        except UnicodeDecodeError:
            return base64.b64encode(key).decode()
    return attribute_text(key)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", str: "string", list: "array"}.get(type(value), "number")
