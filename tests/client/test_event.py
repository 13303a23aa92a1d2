"""Events: their payloads, their attributes, and their way through protobuf."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from wallaroo_spark.api import cloudevents_pb2 as ce
from wallaroo_spark.client import Event
from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError


@pytest.mark.parametrize(
    ("data", "kept", "content_type", "value"),
    [
        (None, None, None, None),
        (b"\xff", b"\xff", None, b"\xff"),
        ("ä", "ä".encode(), "text/plain; charset=utf-8", "ä"),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json", {"a": [1, None]}),
        (7, b"7", "application/json", 7),
    ],
)
def test_a_payload_is_kept_as_bytes_with_its_content_type(data: Any, kept: Any, content_type: Any, value: Any) -> None:
    event = Event("shop.order.created", data)

    assert (event.data, event.datacontenttype, event.value) == (kept, content_type, value)


def test_an_event_is_the_same_after_its_way_through_protobuf() -> None:
    event = Event(
        "shop.order.created",
        {"order": 1},
        id="1",
        source="/shop",
        subject="order 1",
        time=datetime(2026, 7, 1, 12, 30, 1, 250_000, UTC),
        dataschema="https://shop.example/order",
        extensions={"partitionkey": "a", "trace": b"\x00", "tries": 3, "test": True},
    )

    assert Event.from_message(ce.CloudEvent.FromString(event.to_message().SerializeToString())) == event


def test_source_and_key_are_given_to_events_without() -> None:
    message = Event("a").to_message("/client", "k")
    own = Event("a", source="/own", extensions={"partitionkey": "mine"}).to_message("/client", "k")

    assert (message.source, message.attributes["partitionkey"].ce_string) == ("/client", "k")
    assert (own.source, own.attributes["partitionkey"].ce_string) == ("/own", "mine")


def test_ids_differ_unless_they_are_given() -> None:
    assert Event("a").id != Event("a").id


def test_a_payload_that_is_not_as_its_content_type_says_stays_bytes() -> None:
    assert Event("a", b"{", datacontenttype="application/json").value == b"{"


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"type": 7}, ArgumentTypeError, "an event's type is a str, and this one is int: 7"),
        ({"type": ""}, ArgumentValueError, "an event's type is empty"),
        ({"type": "a", "id": ""}, ArgumentValueError, "an event's id is empty"),
        ({"type": "a", "data": object()}, ArgumentTypeError, "data is bytes, a str or a value that JSON can express"),
        ({"type": "a", "data": float("nan")}, ArgumentTypeError, "data is bytes, a str or a value"),
        ({"type": "a", "time": "now"}, ArgumentTypeError, "an event's time is an aware datetime"),
        ({"type": "a", "time": datetime(2026, 1, 1)}, ArgumentValueError, "has no time zone"),
        ({"type": "a", "extensions": {"Trace": "x"}}, ArgumentValueError, "extension 'Trace' is no name"),
        ({"type": "a", "extensions": {"time": "x"}}, ArgumentValueError, "extension 'time' is no name"),
        ({"type": "a", "extensions": {"trace": 1.5}}, ArgumentTypeError, "extension trace is a str"),
        ({"type": "a", "extensions": {"trace": 1 << 31}}, ArgumentValueError, "integers of CloudEvents have 32 bits"),
    ],
)
def test_an_event_that_cannot_work_is_refused(given: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        Event(**given)
