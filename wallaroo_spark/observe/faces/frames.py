"""A status and the metrics as DataFrames: one row for each stream, and one for each value of a metric."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from pyspark.sql import DataFrame

from wallaroo_spark.observe.receiver import ReceiverStatus, StreamStatus
from wallaroo_spark.references import Reference

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
