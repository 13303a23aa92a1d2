"""Rows as events: what a column means, and the JSON format of CloudEvents as the SDK reads it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from wallaroo_spark.client.events import from_structured
from wallaroo_spark.errors import SinkError
from wallaroo_spark.gateway.cloud_events import event_of
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, valid_event
from wallaroo_spark.sinks.settings import StreamSettings
from wallaroo_spark.sinks.stores.event_rows import CLOUDEVENTS, INVALID, RowEvent, RowReader


def made(columns: dict[str, Any], partitions: int = 1, **settings: Any) -> list[RowEvent]:
    given = {"type": "t", "source": "/s", **settings}
    reader = RowReader(StreamSettings("app", "shop/orders", checkpoint="c", name="x", **given))
    return [*reader.events(pa.record_batch(columns), "x/1/0", 0, partitions)]


def structured(payload: bytes | dict[str, Any]) -> RowEvent:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    (found,) = made({"value": [data]}, format=CLOUDEVENTS, type="")
    return found


def test_each_column_is_an_attribute() -> None:
    columns = {
        "data": [b"a"],
        "id": ["1"],
        "source": ["/till"],
        "type": ["order"],
        "subject": ["s"],
        "time": [datetime(2026, 3, 1, 12, tzinfo=UTC)],
        "datacontenttype": ["text/csv"],
        "dataschema": ["http://example.com"],
        "key": ["k"],
        "extensions": pa.array([[("note", "n")]], pa.map_(pa.string(), pa.string())),
    }
    (found,) = made(columns)

    assert found.event == CloudEvent(
        "1",
        "/till",
        "order",
        b"a",
        (
            ("datacontenttype", "text/csv"),
            ("dataschema", "http://example.com"),
            ("note", "n"),
            ("partitionkey", "k"),
            ("subject", "s"),
            ("time", "2026-03-01T12:00:00Z"),
        ),
    )


def test_what_a_row_lacks_comes_from_the_settings_its_place_and_the_type_of_its_payload() -> None:
    first, second = made({"value": ["a", None]})
    assert first.event == CloudEvent("x/1/0/0", "/s", "t", b"a", (("datacontenttype", "text/plain; charset=utf-8"),))
    assert second.event == CloudEvent("x/1/0/1", "/s", "t")
    (binary,) = made({"value": [b"\xff"]})
    assert binary.event.attributes == ()
    (named,) = made({"value": [b"{}"]}, datacontenttype="application/json")
    assert named.event.attributes == (("datacontenttype", "application/json"),)


def test_a_receivers_row_has_the_names_and_the_time_of_its_message() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    of_connector = {"instance": ["till"], "stream": ["s"], "stream_id": [1], "message_id": [7], "flags": [0]}
    times = {"event_time": [at], "received_at": [at]}
    (found,) = made({**of_connector, **times, "key": [None], "value": [b"a"]})
    assert (found.event.id, found.event.source) == ("s/7", "till")
    assert dict(found.event.attributes)["partitionkey"] == "till/s"
    assert dict(found.event.attributes)["time"] == "2026-03-01T00:00:00Z"

    for key, text in ((b"k", "k"), (b"\xff", "/w==")):
        (keyed,) = made({**of_connector, "key": [key], "value": [b"a"]})
        assert dict(keyed.event.attributes)["partitionkey"] == text


@pytest.mark.parametrize("instance", ["http/shop-1", "kafka/billing", "otlp/checkout"])
def test_messages_of_a_doors_client_that_have_one_number_are_different_events(instance: str) -> None:
    # Of a request with a token all messages have it, and producers in one partition may have equal offsets.
    found = made({"instance": [instance] * 2, "stream": ["s"] * 2, "message_id": [7] * 2, "value": [b"a", b"b"]})

    assert [(one.event.id, one.event.source) for one in found] == [("x/1/0/0", instance), ("x/1/0/1", instance)]
    assert dict(found[0].event.attributes)["partitionkey"] == f"{instance}/s"


def test_the_members_of_an_event_come_before_the_columns() -> None:
    payload = b'{"type": "own", "id": "1", "source": "/o", "partitionkey": "p", "time": "2026-01-01T00:00:00Z"}'
    columns = {"value": [payload], "id": ["2"], "source": ["/c"], "key": ["k"], "type": ["other"]}
    (found,) = made(columns, format=CLOUDEVENTS)

    attributes = (("partitionkey", "p"), ("time", "2026-01-01T00:00:00Z"))
    assert found.event == CloudEvent("1", "/o", "own", None, attributes)


@pytest.mark.parametrize(
    "members",
    [
        {"data": {"a": [1, 2.5, None, "ä"]}},
        {"data": "text"},
        {"data": "text", "datacontenttype": "text/plain"},
        {"data": "text", "datacontenttype": "application/json"},
        {"data": 3, "datacontenttype": "application/json; charset=utf-8"},
        {"data": False},
        {"data": None},
        {"data_base64": "AAE="},
        {"specversion": "1.0", "subject": "s", "dataschema": "http://example.com", "partitionkey": "k"},
        {"time": "2026-03-01T12:00:00+02:00"},
        {"subject": None},
        {"flag": True, "count": 7},
        {"note": "\U0001f600"},
        {"note": "x" * 3000},
    ],
)
def test_the_json_format_is_read_as_the_sdk_and_the_grpc_interface_read_it(members: dict[str, Any]) -> None:
    given = {"type": "order.created", "id": "1", "source": "s", **members}

    assert structured(given) == RowEvent(event_of(from_structured(given, "x").to_message(), GatewayLimits()), None)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"order 7", "no CloudEvent in JSON: Expecting value"),
        (b"\xff\xfe", "no CloudEvent in JSON: 'utf-8' codec"),
        (b"", "no CloudEvent in JSON"),
        (b"[1]", "a JSON array"),
        (b"null", "a JSON null"),
        (b'{"data": 1}', "has no type"),
        (b'{"type": {"a": 1}}', "has an attribute that is a dict"),
        (b'{"type": "t", "data": NaN}', "which JSON does not have"),
        (b'{"type": "t", "id": "\\ud800"}', "a lone surrogate"),
        (b'{"type": "t", "data": "\\ud800"}', "has data that cannot be kept"),
        (b'{"type": "t", "data_base64": "?"}', "a data_base64 that is no base64"),
        (b'{"type": "t", "data_base64": 5}', "a data_base64 that is no base64"),
        (b'{"type": "t", "Bad Name": "x"}', "lower-case letters and digits"),
        (b'{"type": "t", "specversion": "0.3"}', "is of CloudEvents '0.3'"),
        (b'{"type": "t", "specversion": [1]}', r"is of CloudEvents '[1]'"),
        (b'{"type": "t", "time": "yesterday"}', "is not RFC 3339"),
        (b'{"type": "t", "time": 5}', "is not RFC 3339"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"type": "t", "data": ' + b"[" * 2000 + b"]" * 2000 + b"}", "nested too deeply"),
        (b'{"type": "t", "data": "' + b"x" * (3 << 20) + b'"}', "bytes, and 3145728 are permitted"),
    ],
)
def test_a_payload_that_is_no_event_is_a_dead_letter_with_the_reason(payload: bytes, problem: str) -> None:
    found = structured(payload)

    assert problem in found.problem
    assert len(found.problem) < 1000
    assert (found.event.type, found.event.data) == (INVALID, payload if len(payload) < 3 << 20 else None)
    assert problem in dict(found.event.attributes)["failedreason"]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"instance": [""], "stream": ["s"], "message_id": [1]}, "has no source"),
        ({"instance": ["i" * 5000], "stream": ["s"], "message_id": [1]}, "has a source of 5000 characters"),
        ({"partition": ["0"]}, "names partition '0'"),
        ({"partition": [1]}, "names partition 1, and there are 1"),
        ({"extensions": [["a"]]}, "has extensions that are a list"),
        ({"extensions": [5]}, "has extensions that are a int"),
        ({"key": [{"a": 1}]}, "has an attribute that is a dict"),
        ({"type": [["t"]]}, "has an attribute that is a list"),
        ({"time": ["yesterday"]}, "is not RFC 3339"),
    ],
)
def test_a_row_that_is_no_event_is_a_dead_letter_that_its_stream_takes(columns: dict[str, Any], problem: str) -> None:
    (found,) = made({"data": [b"x"], **columns})

    assert problem in found.problem
    assert (found.event.type, found.event.data) == (INVALID, b"x")
    # A stream that refused one of the letters would take none that come with it.
    assert valid_event(found.event) == found.event


def test_a_column_that_no_event_has_is_refused() -> None:
    for columns in ({"price": [1], "value": ["a"]}, {"text": ["a"]}, {"data": ["a"], "value": ["b"]}):
        with pytest.raises(SinkError) as refused:
            made(columns)
        assert refused.value.code == "sink-columns"
