"""Bodies as rows of the tables of logs, spans and metrics, as Spark's tasks make them."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import re
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests import evil_values as evil
from tests.doors.otlp.requests import NANOS, logs, metrics, resource, traces
from wallaroo_spark.columnar.schema import row_schema
from wallaroo_spark.doors.otlp.bodies import MOST_UNPACKED
from wallaroo_spark.otel.expand import PIECE, Expansion
from wallaroo_spark.otel.tables import TABLES, VARIANTS, ddl


def table(signal: str, *bodies: bytes | None, corrupt: bool = False) -> list[dict[str, Any]]:
    """The rows of bodies."""
    rows = [
        {"instance": "otlp/shop", "stream": signal, "message_id": number, "value": body}
        for number, body in enumerate(bodies)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=row_schema(headers=False, corrupt=corrupt))
    return [row for piece in Expansion(signal, corrupt)([batch]) for row in piece.to_pylist()]


def as_json(request: Any) -> bytes:
    """A request in OTLP's JSON form, whose ids are hexadecimal and whose enums are numbers."""

    def with_hex(value: Any) -> Any:
        if isinstance(value, list):
            return [with_hex(one) for one in value]
        if not isinstance(value, dict):
            return value
        return {
            name: base64.b64decode(one).hex() if name in ("traceId", "spanId", "parentSpanId") else with_hex(one)
            for name, one in value.items()
        }

    return json.dumps(with_hex(MessageToDict(request, use_integers_for_enums=True))).encode()


def full_span() -> Any:
    """A request with a span in which each field is set."""
    request = traces("GET /")
    request.resource_spans[0].schema_url = "resource-schema"
    scope = request.resource_spans[0].scope_spans[0]
    scope.schema_url, scope.scope.version = "span-schema", "1.2"
    span = scope.spans[0]
    span.parent_span_id, span.trace_state, span.flags = b"\xab" * 8, "a=b", 1
    span.status.code, span.status.message = Status.STATUS_CODE_ERROR, "it failed"
    span.dropped_attributes_count = 3
    span.attributes.add(key="text").value.string_value = "é"
    span.attributes.add(key="number").value.int_value = -(1 << 63)
    span.attributes.add(key="flag").value.bool_value = True
    span.attributes.add(key="double").value.double_value = 1.5
    span.attributes.add(key="none").value.double_value = float("nan")
    span.attributes.add(key="bytes").value.bytes_value = b"\x00\xff"
    span.attributes.add(key="list").value.array_value.values.add(string_value="a")
    span.attributes.add(key="object").value.kvlist_value.values.add(key="k").value.int_value = 1
    span.attributes.add(key="empty")
    span.events.add(time_unix_nano=NANOS, name="retry").attributes.add(key="n").value.int_value = 2
    span.links.add(trace_id=b"\x02" * 16, span_id=b"\x03" * 8, flags=1)
    return request


@pytest.mark.parametrize("form", ["protobuf", "gzip", "json"])
def test_a_span_is_a_row_with_all_its_fields(form: str) -> None:
    request = full_span()
    body = request.SerializeToString()
    (row,) = table("traces", {"protobuf": body, "gzip": gzip.compress(body), "json": as_json(request)}[form])

    assert row["record_id"].startswith("0" * 24)
    assert (row["time"].isoformat(), row["date"].isoformat()) == ("2026-11-24T09:56:45.581000+00:00", "2026-11-24")
    assert (row["trace_id"], row["span_id"]) == ("0" * 31 + "1", "0" * 16)
    assert (row["parent_span_id"], row["trace_state"], row["flags"]) == ("ab" * 8, "a=b", 1)
    assert (row["service_name"], row["name"], row["kind"]) == ("shop", "GET /", "SPAN_KIND_SERVER")
    assert row["end_time_unix_nano"] - row["start_time_unix_nano"] == 5_000_000
    assert row["status"] == {"message": "it failed", "code": "STATUS_CODE_ERROR"}
    assert json.loads(row["attributes"]) == {
        "text": "é", "number": -(1 << 63), "flag": True, "double": 1.5, "none": "NaN", "bytes": "AP8=",
        "list": ["a"], "object": {"k": 1}, "empty": None,
    }  # fmt: skip
    assert row["dropped_attributes_count"] == 3
    assert row["events"] == [
        {"time_unix_nano": NANOS, "name": "retry", "attributes": '{"n":2}', "dropped_attributes_count": 0}
    ]
    (link,) = row["links"]
    assert (link["trace_id"], link["span_id"], link["flags"]) == ("02" * 16, "03" * 8, 1)
    assert json.loads(row["resource"]["attributes"]) == {"telemetry.sdk.language": "python", "service.name": "shop"}
    assert (row["resource_schema_url"], row["span_schema_url"]) == ("resource-schema", "span-schema")
    assert (row["instrumentation_scope"]["name"], row["instrumentation_scope"]["version"]) == ("library", "1.2")


def test_a_log_record_is_a_row() -> None:
    request = logs("late", "later")
    request.resource_logs[0].scope_logs[0].log_records[1].time_unix_nano = 0
    request.resource_logs[0].scope_logs[0].log_records[1].observed_time_unix_nano = NANOS + 10**9
    first, second = table("logs", request.SerializeToString())

    assert (first["body"], first["severity_number"], first["severity_text"]) == (
        '"late"', "SEVERITY_NUMBER_INFO", ""
    )  # fmt: skip
    assert first["record_id"] < second["record_id"]
    # Without a time of its own it has that of its observer.
    assert (second["time"] - first["time"]).total_seconds() == 1
    assert (second["time_unix_nano"], second["observed_time_unix_nano"]) == (0, NANOS + 10**9)


@pytest.mark.parametrize("form", ["protobuf", "json"])
def test_a_data_point_of_each_kind_is_a_row(form: str) -> None:
    request = metrics()
    rows = table("metrics", request.SerializeToString() if form == "protobuf" else as_json(request))
    found = {row["metric_type"]: row for row in rows}

    assert found.keys() == {"gauge", "sum", "histogram", "exponential_histogram", "summary"}
    for kind, row in found.items():
        assert [name for name in found if row[name] is not None] == [kind]
    assert found["gauge"]["gauge"]["value"] == 7.0
    total = found["sum"]["sum"]
    assert (total["value"], total["is_monotonic"]) == (1.5, True)
    assert total["aggregation_temporality"] == "AGGREGATION_TEMPORALITY_CUMULATIVE"
    assert (total["exemplars"][0]["value"], total["exemplars"][0]["trace_id"]) == (3.0, "01" * 16)
    histogram = found["histogram"]["histogram"]
    assert (histogram["count"], histogram["sum"], histogram["min"], histogram["max"]) == (3, 4.5, None, 3.0)
    assert (histogram["bucket_counts"], histogram["explicit_bounds"]) == ([1, 2], [1.0])
    exponential = found["exponential_histogram"]["exponential_histogram"]
    assert (exponential["scale"], exponential["positive_bucket"]) == (-2, {"offset": 0, "bucket_counts": [1]})
    assert found["summary"]["summary"]["quantile_values"] == [{"quantile": 0.5, "value": 4.0}]


def test_unknown_fields_and_values_are_no_error() -> None:
    document = json.loads(as_json(traces("a")))
    document["later"] = 1
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span |= {"later": {"a": [1]}, "kind": 77}
    (row,) = table("traces", json.dumps(document).encode())
    assert row["kind"] == "77"

    request = traces("a")
    request.resource_spans[0].scope_spans[0].spans[0].kind = 77  # type: ignore[assignment]  # a value that is not known
    (row,) = table("traces", request.SerializeToString() + b"\x98\x06\x01")
    assert row["kind"] == "77"


def test_numbers_without_a_place_in_sparks_types_are_null() -> None:
    request = traces("a", "b")
    first, second = request.resource_spans[0].scope_spans[0].spans
    first.start_time_unix_nano, first.flags = (1 << 64) - 1, (1 << 32) - 1
    second.start_time_unix_nano = 0
    rows = table("traces", request.SerializeToString())

    assert [row["date"] and row["date"].year for row in rows] == [2554, None]
    assert rows[1]["time"] is None
    assert [row["start_time_unix_nano"] for row in rows] == [None, 0]
    assert [row["flags"] for row in rows] == [None, 0]


def test_rows_of_many_bodies_come_in_pieces() -> None:
    body = traces(*map(str, range(1000))).SerializeToString()
    batch = pa.RecordBatch.from_pylist(
        [{"instance": "otlp/shop", "stream": "traces", "message_id": number, "value": body} for number in range(10)],
        schema=row_schema(headers=False, corrupt=False),
    )
    pieces = list(Expansion("traces")([batch]))

    assert [piece.num_rows for piece in pieces] == [PIECE, 10_000 - PIECE]
    assert len({name for piece in pieces for name in piece["record_id"].to_pylist()}) == 10_000


def nested(depth: int) -> bytes:
    """A log record whose body is lists in lists."""
    request = logs()
    value = request.resource_logs[0].scope_logs[0].log_records.add().body
    for _ in range(depth):
        value = value.array_value.values.add()
    value.string_value = "deep"
    return request.SerializeToString()


UNREADABLE = {
    "half a message": traces("a").SerializeToString()[:-3],
    "a name that is not UTF-8": traces("XY").SerializeToString().replace(b"XY", b"\xff\xfe"),
    "half a gzip": gzip.compress(traces("a").SerializeToString())[:-12],
    "a bomb that lies about its size": gzip.compress(bytes(MOST_UNPACKED + 1), 1)[:-4] + b"\x01\x00\x00\x00",
    "ids that are no hexadecimal": b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"xyz"}]}]}]}',
    "another type": b'{"resourceSpans":{"a":1}}',
    "a text for a number": b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"x"}]}]}]}',
    "lists nested 5,000 deep": b'{"resourceSpans":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "objects nested 50,000 deep": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "a lone surrogate": b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"\\ud800"}]}]}]}',
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_body_that_cannot_be_read_is_logged_and_left_out(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "wallaroo_spark.otel"):
        (row,) = table("traces", UNREADABLE[name], traces("b").SerializeToString())
    assert row["name"] == "b"
    assert "a request of otlp/shop with traces is left out" in caplog.text
    bad, good = table("traces", UNREADABLE[name], traces("b").SerializeToString(), corrupt=True)
    assert (bad.pop("error_bytes"), good["error_bytes"]) == (UNREADABLE[name], None)
    assert set(bad.values()) == {None}


def test_values_nested_deep_are_read_or_left_out() -> None:
    (row,) = table("logs", nested(40))
    assert json.loads(row["body"]) is not None
    assert table("logs", nested(400)) == []


@pytest.mark.parametrize("name", evil.PAYLOADS)
@pytest.mark.parametrize("signal", TABLES)
def test_every_evil_payload_is_left_out_or_has_no_rows(signal: str, name: str) -> None:
    payload = evil.PAYLOADS[name]

    assert table(signal, payload, gzip.compress(payload)) == []


def test_a_message_of_a_boundary_is_no_body() -> None:
    assert table("traces", None) == []


def test_names_of_services_of_other_types_are_texts() -> None:
    request = traces("a", service=None)
    group = resource(request.resource_spans[0], None)
    group.resource.attributes.add(key="service.name").value.int_value = 7
    (row,) = table("traces", request.SerializeToString())

    assert row["service_name"] == "7"


def test_the_types_are_those_of_spark() -> None:
    assert ddl(TABLES["traces"]).startswith(
        "record_id STRING, time TIMESTAMP, date DATE, service_name STRING, trace_id"
    )
    assert "events ARRAY<STRUCT<time_unix_nano: BIGINT, name: STRING, attributes: STRING," in ddl(TABLES["traces"])
    assert set(re.findall(r"\w+(?=: | STRING)", " ".join(map(ddl, TABLES.values())))) >= VARIANTS
