"""The JSON of a status, in a schema with a version, and DataFrames: a row for each stream, or each value of a metric.

Message references and stream ids are decimal text, because many JSON readers round a u64. A reader ignores fields that
it does not know and takes the default of one that is missing, so a newer and an older program understand each other.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from wallaroo_spark.observe.receiver import ReceiverStatus, StreamStatus
from wallaroo_spark.references import Reference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = 1
"""The version of the schema. It grows when a field changes its meaning, not when one is added."""

R = TypeVar("R")
_REFERENCES = ("received", "planned", "committed")
_IDS = ("stream_id",)


def to_json(status: ReceiverStatus) -> dict[str, Any]:
    """The status as JSON-ready values, with the version of the schema as ``schema``."""
    return {"schema": SCHEMA, **record_to_json(status)}


def from_json(value: Mapping[str, Any]) -> ReceiverStatus:
    """The status from its JSON. Raises ValueError for another version of the schema, and for values of wrong types."""
    if value.get("schema") != SCHEMA:
        raise ValueError(f"schema is {value.get('schema')!r}, and this release reads schema {SCHEMA}")
    return record_from_json(ReceiverStatus, value)


def record_to_json(record: Any, *, sparse: bool = False) -> dict[str, Any]:
    """One record of the model as JSON-ready values; ``sparse``: without the fields that have their default."""
    fields = ((field, getattr(record, field.name)) for field in dataclasses.fields(record))
    return {
        field.name: _plain(field.name, value, sparse)
        for field, value in fields
        if not (sparse and value == field.default)
    }


def record_from_json(kind: type[R], value: Mapping[str, Any]) -> R:
    """One record of the model from its JSON. Raises ValueError for a value that is not an object, or lacks a field."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{kind.__name__} is {value!r:.100}, and has to be an object")
    hints = _hints(kind)  # type: ignore[arg-type]  # mypy does not know that a type can be hashed
    given = {name: _value(name, hints[name], value[name]) for name in hints if name in value}
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from None


def _plain(name: str, value: Any, sparse: bool = False) -> Any:
    if dataclasses.is_dataclass(value):
        return record_to_json(value, sparse=sparse)
    if isinstance(value, tuple):
        return [_plain("", part, sparse) for part in value]
    if isinstance(value, Mapping):
        return dict(value)
    if value is not None and (name in _REFERENCES or name in _IDS):
        return str(value)
    return value


def _value(name: str, hint: Any, value: Any) -> Any:
    if hint == Reference | None:
        return reference_of_text(value)
    if isinstance(hint, types.UnionType) or get_origin(hint) is Union:
        if value is None:
            return None
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record_from_json(hint, value)
    if get_origin(hint) is tuple:
        return tuple(_value("", get_args(hint)[0], part) for part in value)
    if get_origin(hint) is Mapping:
        return dict(value)
    if name in _IDS:
        return int(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint):
        raise ValueError(f"{name} is {value!r:.100}, and has to be {hint.__name__}")
    return value


def reference_of_text(value: Any) -> Reference | None:
    """A reference from its text: a message id in decimal digits, or the text of an ephemeral reference."""
    if value is None:
        return None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else text


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


_FIRST_COLUMNS = (
    "receiver string, time timestamp, slot int, slot_state string, instance string, instance_state string, "
    "credits bigint, stream string, stream_id bigint, state string, received string, planned string, "
    "committed string, rows bigint, bytes bigint, lag_rows bigint, ack_age double, cause string, sentence string"
)
_KNOWN = [column.partition(" ")[0] for column in _FIRST_COLUMNS.split(", ")]
_TYPES = {"int": "bigint", "float": "double", "bool": "boolean", "str": "string"}
_FURTHER = {one.name: _TYPES[str(one.type)] for one in fields(StreamStatus) if one.name not in ("name", *_KNOWN)}
_COLUMNS = (*_KNOWN, *_FURTHER)
STREAMS_SCHEMA = ", ".join([_FIRST_COLUMNS, *(f"{name} {kind}" for name, kind in _FURTHER.items())])
"""The columns; the last ones are the further fields of :class:`StreamStatus`. Stream ids have the bits of the u64, as
in the rows of a receiver; references are text."""
METRICS_SCHEMA = "receiver string, time timestamp, metric string, labels map<string, string>, value double"
"""The columns. A histogram has rows named ``_sum``, ``_count`` and ``_bucket`` (with the label ``le``)."""
_GREATEST = (1 << 63) - 1


def streams_frame(spark: Any, status: ReceiverStatus) -> DataFrame:
    """The streams of a snapshot as a DataFrame with the columns of :data:`STREAMS_SCHEMA`."""
    slots = {slot.slot: slot.state for slot in status.slots}
    instances = {(one.slot, one.name): one for one in status.instances}

    def row(one: StreamStatus) -> tuple[Any, ...]:
        instance = instances.get((one.slot, one.instance))
        values = vars(one) | {
            "receiver": status.name,
            "time": _timestamp(status.time),
            "slot_state": slots.get(one.slot),
            "instance_state": instance.state if instance else None,
            "credits": instance.credits if instance else None,
            "stream": one.name,
            "stream_id": one.stream_id if one.stream_id <= _GREATEST else one.stream_id - (1 << 64),
            **{name: _text(getattr(one, name)) for name in ("received", "planned", "committed")},
            "cause": one.cause.code,
            "sentence": one.cause.sentence,
        }
        return tuple(values[name] for name in _COLUMNS)

    frame: DataFrame = spark.createDataFrame([row(one) for one in status.streams], STREAMS_SCHEMA)
    return frame


def metrics_frame(spark: Any, receiver: str, metrics: Mapping[str, Sequence[Mapping[str, Any]]]) -> DataFrame:
    """The values of :meth:`~wallaroo_spark.receiver.Receiver.metrics` with the columns of :data:`METRICS_SCHEMA`."""
    at = _timestamp(time.time())
    rows = [
        (receiver, at, metric, labels, float(value))
        for name, values in metrics.items()
        for one in values
        for metric, labels, value in _samples(name, one)
    ]
    frame: DataFrame = spark.createDataFrame(rows, METRICS_SCHEMA)
    return frame


def _samples(name: str, one: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, str], float]]:
    labels = dict(one["labels"])
    if "value" in one:
        yield name, labels, one["value"]
        return
    yield f"{name}_sum", labels, one["sum"]
    yield f"{name}_count", labels, one["count"]
    for bound, count in one["buckets"].items():
        yield f"{name}_bucket", {**labels, "le": "+Inf" if bound == "inf" else bound}, count


def _timestamp(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _text(reference: Reference | None) -> str | None:
    return None if reference is None else str(reference)
