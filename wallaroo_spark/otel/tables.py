"""The columns of the tables of logs, spans and metrics.

They are those of the OpenTelemetry tables that Databricks' Zerobus Ingest writes, so that queries and dashboards for
one read the other. Source: ``docs/doors/opentelemetry.md``.
"""

from __future__ import annotations

import pyarrow as pa

VARIANTS = frozenset({"attributes", "filtered_attributes", "body", "metadata"})
"""Fields that are VARIANT in Spark. Tasks write them as JSON, which Spark then reads."""

_TEXT, _INT, _LONG, _DOUBLE = pa.string(), pa.int32(), pa.int64(), pa.float64()


def _struct(**fields: pa.DataType) -> pa.StructType:
    return pa.struct(list(fields.items()))


_BEGINNING = {
    "record_id": _TEXT,
    "time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "service_name": _TEXT,
}
_RESOURCE = _struct(attributes=_TEXT, dropped_attributes_count=_INT)
_SCOPE = _struct(name=_TEXT, version=_TEXT, attributes=_TEXT, dropped_attributes_count=_INT)


def _end(schema_url: str) -> dict[str, pa.DataType]:
    """The columns of a record's surroundings; those of a scope are followed by the URL of its schema."""
    return {
        "resource": _RESOURCE,
        "resource_schema_url": _TEXT,
        "instrumentation_scope": _SCOPE,
        schema_url: _TEXT,
    }


_EVENT = _struct(time_unix_nano=_LONG, name=_TEXT, attributes=_TEXT, dropped_attributes_count=_INT)
_LINK = _struct(
    trace_id=_TEXT,
    span_id=_TEXT,
    trace_state=_TEXT,
    attributes=_TEXT,
    dropped_attributes_count=_INT,
    flags=_INT,
)
_EXEMPLARS = pa.list_(
    _struct(time_unix_nano=_LONG, value=_DOUBLE, span_id=_TEXT, trace_id=_TEXT, filtered_attributes=_TEXT)
)
_BUCKETS = _struct(offset=_INT, bucket_counts=pa.list_(_LONG))
_POINT = {"value": _DOUBLE, "exemplars": _EXEMPLARS, "attributes": _TEXT, "flags": _INT}

SPANS = pa.schema(
    {
        **_BEGINNING,
        "trace_id": _TEXT,
        "span_id": _TEXT,
        "trace_state": _TEXT,
        "parent_span_id": _TEXT,
        "flags": _INT,
        "name": _TEXT,
        "kind": _TEXT,
        "start_time_unix_nano": _LONG,
        "end_time_unix_nano": _LONG,
        "attributes": _TEXT,
        "dropped_attributes_count": _INT,
        "events": pa.list_(_EVENT),
        "dropped_events_count": _INT,
        "links": pa.list_(_LINK),
        "dropped_links_count": _INT,
        "status": _struct(message=_TEXT, code=_TEXT),
        **_end("span_schema_url"),
    }
)
"""A row for each span."""

LOGS = pa.schema(
    {
        **_BEGINNING,
        "event_name": _TEXT,
        "trace_id": _TEXT,
        "span_id": _TEXT,
        "time_unix_nano": _LONG,
        "observed_time_unix_nano": _LONG,
        "severity_number": _TEXT,
        "severity_text": _TEXT,
        "body": _TEXT,
        "attributes": _TEXT,
        "dropped_attributes_count": _INT,
        "flags": _INT,
        **_end("log_schema_url"),
    }
)
"""A row for each log record."""

METRICS = pa.schema(
    {
        **_BEGINNING,
        "start_time_unix_nano": _LONG,
        "time_unix_nano": _LONG,
        "name": _TEXT,
        "description": _TEXT,
        "unit": _TEXT,
        "metric_type": _TEXT,
        "gauge": _struct(**_POINT),
        "sum": _struct(**_POINT, aggregation_temporality=_TEXT, is_monotonic=pa.bool_()),
        "histogram": _struct(
            count=_LONG,
            sum=_DOUBLE,
            bucket_counts=pa.list_(_LONG),
            explicit_bounds=pa.list_(_DOUBLE),
            exemplars=_EXEMPLARS,
            attributes=_TEXT,
            flags=_INT,
            min=_DOUBLE,
            max=_DOUBLE,
            aggregation_temporality=_TEXT,
        ),
        "exponential_histogram": _struct(
            attributes=_TEXT,
            count=_LONG,
            sum=_DOUBLE,
            scale=_INT,
            zero_count=_LONG,
            positive_bucket=_BUCKETS,
            negative_bucket=_BUCKETS,
            flags=_INT,
            exemplars=_EXEMPLARS,
            min=_DOUBLE,
            max=_DOUBLE,
            zero_threshold=_DOUBLE,
            aggregation_temporality=_TEXT,
        ),
        "summary": _struct(
            count=_LONG,
            sum=_DOUBLE,
            quantile_values=pa.list_(_struct(quantile=_DOUBLE, value=_DOUBLE)),
            attributes=_TEXT,
            flags=_INT,
        ),
        "metadata": _TEXT,
        **_end("metric_schema_url"),
    }
)
"""A row for each data point of a metric; ``metric_type`` says which of the structs has it."""

TABLES = {"logs": LOGS, "traces": SPANS, "metrics": METRICS}
"""The table of each signal."""

_NAMES = {
    pa.string(): "STRING",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark DDL."""
    return ", ".join(f"{field.name} {_type(field.type)}" for field in schema)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {_type(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{_type(kind.value_type)}>"
    return _NAMES[kind]
