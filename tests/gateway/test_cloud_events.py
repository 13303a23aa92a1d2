"""Events of the interface as those of the controller, and back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.gateway.shop import event
from wallaroo_spark.api import cloudevents_pb2 as ce
from wallaroo_spark.gateway.cloud_events import event_of, to_wire
from wallaroo_spark.gateway.limits import GatewayLimits, Refused
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, rfc3339

LIMITS = GatewayLimits()


def test_every_type_of_attribute_has_one_text() -> None:
    given = event("a", data=b"d", subject="s")
    given.attributes["count"].ce_integer = -7
    given.attributes["ok"].ce_boolean = True
    given.attributes["raw"].ce_bytes = b"\x00\xff"
    given.attributes["dataschema"].ce_uri = "https://example.com/s"
    given.attributes["time"].ce_timestamp.FromDatetime(datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC))
    found = event_of(given, LIMITS)
    assert dict(found.attributes) == {
        "count": "-7",
        "ok": "true",
        "raw": "AP8=",
        "subject": "s",
        "dataschema": "https://example.com/s",
        "time": "2026-03-01T12:00:00.250Z",
    }
    back = to_wire(found)
    assert back.attributes["time"].ce_timestamp == given.attributes["time"].ce_timestamp
    assert back.attributes["dataschema"].ce_uri == "https://example.com/s"
    assert back.attributes["count"].ce_string == "-7"
    assert event_of(back, LIMITS) == found


@pytest.mark.parametrize("data", [None, b"", b"x"])
def test_no_data_and_empty_data_are_two_things(data: bytes | None) -> None:
    found = event_of(event("a", data=data), LIMITS)
    assert found == CloudEvent("a", "test", "order.created", data)
    assert to_wire(found).WhichOneof("data") == (None if data is None else "binary_data")


def test_text_is_kept_as_utf_8() -> None:
    assert event_of(ce.CloudEvent(id="a", source="s", type="t", text_data="ü"), LIMITS).data == "ü".encode()


@pytest.mark.parametrize(
    ("text", "kept"),
    [("2026-03-01T14:00:00+02:00", "2026-03-01T12:00:00Z"), ("2026-03-01T12:00:00.5Z", "2026-03-01T12:00:00.500Z")],
)
def test_a_time_is_kept_in_utc(text: str, kept: str) -> None:
    assert event_of(event("a", time=text), LIMITS).attributes == (("time", kept),)
    assert rfc3339(datetime.fromisoformat(kept)) == kept


def attributes(given: dict[str, str]) -> ce.CloudEvent:
    """An event with attributes of any names."""
    made = event("a")
    for name, value in given.items():
        made.attributes[name].ce_string = value
    return made


def invalid_events() -> list[ce.CloudEvent]:
    proto = event("a")
    proto.proto_data.type_url = "x"
    empty = event("a")
    empty.attributes["x"].SetInParent()
    future = event("a")
    future.attributes["time"].ce_timestamp.seconds = 1 << 60
    many = attributes({f"x{number}": "v" for number in range(101)})
    return [
        ce.CloudEvent(source="s", type="t"),
        ce.CloudEvent(id="a", type="t"),
        ce.CloudEvent(id="a", source="s"),
        ce.CloudEvent(id="a", source="s", type="t", spec_version="0.3"),
        event("a" * 5000),
        event("a", data=bytes(LIMITS.event_bytes)),
        event("a", Upper="x"),
        attributes({"id": "x"}),
        event("a", time="12:00"),
        event("a", time="2026-03-01T12:00:00"),
        attributes({"": "x"}),
        proto,
        empty,
        future,
        many,
    ]


@pytest.mark.parametrize("given", invalid_events())
def test_an_event_that_is_not_valid_is_refused_by_its_place(given: ce.CloudEvent) -> None:
    with pytest.raises(Refused, match=r"^event 3") as caught:
        event_of(given, LIMITS, "event 3")
    assert caught.value.code == "request-invalid"
