"""Rows with bodies of OTLP requests as rows of logs, spans and data points; in Spark's tasks.

Source: ``docs/doors/opentelemetry.md``.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from wallaroo_spark.columnar.schema import CORRUPT
from wallaroo_spark.errors import one_line
from wallaroo_spark.otel.messages import UnreadableRequest, read
from wallaroo_spark.otel.tables import TABLES

log = one_line(logging.getLogger("wallaroo_spark.otel"))

PIECE = 8192
"""Rows of one record batch. A choice: as many as a batch of a Collector has."""
_GREATEST_LONG = (1 << 63) - 1
_DAY_NS = 86_400 * 10**9
_SERVICE = "service.name"
_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True)
class Expansion:
    """The function for ``mapInArrow``, from rows of a receiver to rows of the table of a signal.

    A body that cannot be read is logged and left out; with ``corrupt`` it is a row of nulls with the body in the column
    ``error_bytes``.
    """

    signal: str
    corrupt: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, with VARIANT columns as texts."""
        table = TABLES[self.signal]
        return table.append(CORRUPT) if self.corrupt else table

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Expand the bodies of record batches."""
        rows = itertools.chain.from_iterable(map(self._rows, batches))
        while piece := list(itertools.islice(rows, PIECE)):
            yield pa.RecordBatch.from_pylist(piece, schema=self.schema)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
        names = ["instance", "stream", "message_id", "value", *["error_bytes"] * self.corrupt]
        for instance, stream, number, body, *error in zip(*(batch[name].to_pylist() for name in names), strict=True):
            if body is None:
                if error and error[0] is not None:
                    yield {CORRUPT.name: error[0]}
                continue
            try:
                request = read(self.signal, body)
            except UnreadableRequest as why:
                log.warning("a request of %s with %s is left out: %s", instance, stream, why)
                if self.corrupt:
                    yield {CORRUPT.name: body}
                continue
            origin = hashlib.blake2b(f"{instance}/{stream}".encode(), digest_size=4).hexdigest()
            for place, row in enumerate(_ROWS[self.signal](request)):
                row["record_id"] = f"{number:016x}{place:08x}{origin}"
                yield row


def spans(request: Any) -> Iterator[dict[str, Any]]:
    """The rows of a request with spans."""
    for group in request.resource_spans:
        resource = _resource(group)
        for scope in group.scope_spans:
            around = {**resource, **_scope(scope), "span_schema_url": scope.schema_url}
            for span in scope.spans:
                yield {
                    **around,
                    **_times(span.start_time_unix_nano),
                    "trace_id": span.trace_id.hex(),
                    "span_id": span.span_id.hex(),
                    "trace_state": span.trace_state,
                    "parent_span_id": span.parent_span_id.hex(),
                    "flags": _int(span.flags),
                    "name": span.name,
                    "kind": _enum(Span.SpanKind, span.kind),
                    "start_time_unix_nano": _long(span.start_time_unix_nano),
                    "end_time_unix_nano": _long(span.end_time_unix_nano),
                    "attributes": _attributes(span),
                    "dropped_attributes_count": _int(span.dropped_attributes_count),
                    "events": [
                        {
                            "time_unix_nano": _long(event.time_unix_nano),
                            "name": event.name,
                            "attributes": _attributes(event),
                            "dropped_attributes_count": _int(event.dropped_attributes_count),
                        }
                        for event in span.events
                    ],
                    "dropped_events_count": _int(span.dropped_events_count),
                    "links": [
                        {
                            "trace_id": link.trace_id.hex(),
                            "span_id": link.span_id.hex(),
                            "trace_state": link.trace_state,
                            "attributes": _attributes(link),
                            "dropped_attributes_count": _int(link.dropped_attributes_count),
                            "flags": _int(link.flags),
                        }
                        for link in span.links
                    ],
                    "dropped_links_count": _int(span.dropped_links_count),
                    "status": {"message": span.status.message, "code": _enum(Status.StatusCode, span.status.code)},
                }


def logs(request: Any) -> Iterator[dict[str, Any]]:
    """The rows of a request with log records."""
    for group in request.resource_logs:
        resource = _resource(group)
        for scope in group.scope_logs:
            around = {**resource, **_scope(scope), "log_schema_url": scope.schema_url}
            for record in scope.log_records:
                yield {
                    **around,
                    # A record of a system that has no times has that of its observer alone.
                    **_times(record.time_unix_nano or record.observed_time_unix_nano),
                    "event_name": record.event_name,
                    "trace_id": record.trace_id.hex(),
                    "span_id": record.span_id.hex(),
                    "time_unix_nano": _long(record.time_unix_nano),
                    "observed_time_unix_nano": _long(record.observed_time_unix_nano),
                    "severity_number": _enum(SeverityNumber, record.severity_number),
                    "severity_text": record.severity_text,
                    "body": _JSON(_plain(record.body)),
                    "attributes": _attributes(record),
                    "dropped_attributes_count": _int(record.dropped_attributes_count),
                    "flags": _int(record.flags),
                }


def metrics(request: Any) -> Iterator[dict[str, Any]]:
    """The rows of a request with metrics."""
    for group in request.resource_metrics:
        resource = _resource(group)
        for scope in group.scope_metrics:
            around = {**resource, **_scope(scope), "metric_schema_url": scope.schema_url}
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind is None:
                    continue
                data = getattr(metric, kind)
                of_all = {
                    name: _enum(AggregationTemporality, value) if name == "aggregation_temporality" else value
                    for name in ("aggregation_temporality", "is_monotonic")
                    if (value := getattr(data, name, None)) is not None
                }
                named = {
                    **around,
                    "name": metric.name,
                    "description": metric.description,
                    "unit": metric.unit,
                    "metric_type": kind,
                    "metadata": _object(metric.metadata),
                }
                for point in data.data_points:
                    yield {
                        **named,
                        **_times(point.time_unix_nano),
                        "start_time_unix_nano": _long(point.start_time_unix_nano),
                        "time_unix_nano": _long(point.time_unix_nano),
                        kind: {
                            "attributes": _attributes(point),
                            "flags": _int(point.flags),
                            **of_all,
                            **_POINTS[kind](point),
                        },
                    }


_ROWS = {"logs": logs, "traces": spans, "metrics": metrics}


def _number(point: Any) -> dict[str, Any]:
    return {"value": _value(point), "exemplars": _exemplars(point)}


def _histogram(point: Any) -> dict[str, Any]:
    return {
        "count": _long(point.count),
        "sum": _optional(point, "sum"),
        "bucket_counts": [_long(one) for one in point.bucket_counts],
        "explicit_bounds": list(point.explicit_bounds),
        "exemplars": _exemplars(point),
        "min": _optional(point, "min"),
        "max": _optional(point, "max"),
    }


def _exponential(point: Any) -> dict[str, Any]:
    return {
        "count": _long(point.count),
        "sum": _optional(point, "sum"),
        "scale": point.scale,
        "zero_count": _long(point.zero_count),
        "positive_bucket": _buckets(point.positive),
        "negative_bucket": _buckets(point.negative),
        "exemplars": _exemplars(point),
        "min": _optional(point, "min"),
        "max": _optional(point, "max"),
        "zero_threshold": point.zero_threshold,
    }


def _summary(point: Any) -> dict[str, Any]:
    values = [{"quantile": one.quantile, "value": one.value} for one in point.quantile_values]
    return {"count": _long(point.count), "sum": point.sum, "quantile_values": values}


_POINTS = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential,
    "summary": _summary,
}


def _buckets(buckets: Any) -> dict[str, Any]:
    return {"offset": buckets.offset, "bucket_counts": [_long(one) for one in buckets.bucket_counts]}


def _exemplars(point: Any) -> list[dict[str, Any]]:
    return [
        {
            "time_unix_nano": _long(one.time_unix_nano),
            "value": _value(one),
            "span_id": one.span_id.hex(),
            "trace_id": one.trace_id.hex(),
            "filtered_attributes": _object(one.filtered_attributes),
        }
        for one in point.exemplars
    ]


def _value(point: Any) -> float | None:
    kind = point.WhichOneof("value")
    return None if kind is None else float(getattr(point, kind))


def _optional(point: Any, name: str) -> float | None:
    return getattr(point, name) if point.HasField(name) else None


def _resource(group: Any) -> dict[str, Any]:
    """The columns of a resource, which all its records have."""
    resource = group.resource
    attributes = {one.key: _plain(one.value) for one in resource.attributes}
    service = attributes.get(_SERVICE)
    return {
        "service_name": None if service is None else str(service),
        "resource": {
            "attributes": _JSON(attributes),
            "dropped_attributes_count": _int(resource.dropped_attributes_count),
        },
        "resource_schema_url": group.schema_url,
    }


def _scope(group: Any) -> dict[str, Any]:
    scope = group.scope
    return {
        "instrumentation_scope": {
            "name": scope.name,
            "version": scope.version,
            "attributes": _attributes(scope),
            "dropped_attributes_count": _int(scope.dropped_attributes_count),
        }
    }


def _times(nanoseconds: int) -> dict[str, Any]:
    """The columns time and date, null for 0, which is no time."""
    if not nanoseconds:
        return {"time": None, "date": None}
    return {"time": nanoseconds // 1000, "date": nanoseconds // _DAY_NS}


def _long(value: int) -> int | None:
    """An unsigned number as a bigint; null where it does not fit."""
    return value if value <= _GREATEST_LONG else None


def _int(value: int) -> int | None:
    return value if value <= 0x7FFF_FFFF else None


def _enum(names: Any, value: int) -> str:
    """The name of a value; the number of one that is not known."""
    found = names.DESCRIPTOR.values_by_number.get(value)
    return str(value) if found is None else str(found.name)


def _attributes(message: Any) -> str:
    return _object(message.attributes)


def _object(pairs: Any) -> str:
    return _JSON({pair.key: _plain(pair.value) for pair in pairs})


def _plain(value: Any) -> Any:
    """The value of an AnyValue as JSON has it: bytes in base64, and numbers that JSON lacks as texts."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    match kind:
        case "string_value" | "bool_value" | "int_value":
            return found
        case "double_value":
            return found if math.isfinite(found) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(found, "NaN")
        case "array_value":
            return [_plain(one) for one in found.values]
        case "kvlist_value":
            return {pair.key: _plain(pair.value) for pair in found.values}
        case "bytes_value":
            return base64.b64encode(found).decode()
    return None
