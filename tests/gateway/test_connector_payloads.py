"""Payloads of connectors' messages as events, and the names of connector streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wallaroo_spark.client.events.structured import from_structured
from wallaroo_spark.gateway.cloud_events import event_of
from wallaroo_spark.gateway.connectors.names import ConnectorTarget, target_of
from wallaroo_spark.gateway.connectors.payloads import event_of_payload
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.refusals import Refused
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent

LIMITS = GatewayLimits()


def event(payload: bytes | dict[str, Any], limits: GatewayLimits = LIMITS) -> CloudEvent:
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return event_of_payload(data, "shop/orders/7", "till", limits, "message 7 of shop/orders")


def test_id_and_source_come_from_the_message_where_the_event_has_none() -> None:
    made = event({"type": "order.created", "data": {"order": 1}})

    assert made == CloudEvent(
        "shop/orders/7", "till", "order.created", b'{"order":1}', (("datacontenttype", "application/json"),)
    )
    own = event({"type": "order.created", "id": "a", "source": "b"})
    assert own == CloudEvent("a", "b", "order.created")


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
        {"id": "", "x": "y"},
    ],
)
def test_the_fast_conversion_has_the_same_result_as_the_sdk_and_the_grpc_interface(members: dict[str, Any]) -> None:
    given = {"type": "order.created", "id": "1", "source": "s", **members}

    def slowly() -> CloudEvent:
        return event_of(from_structured(given, "x").to_message(), LIMITS)

    try:
        expected = slowly()
    except Exception:
        with pytest.raises(Refused):
            event(given)
    else:
        assert event(given) == expected


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"order 7", "no CloudEvent in JSON: Expecting value"),
        (b"\xff\xfe", "no CloudEvent in JSON: 'utf-8' codec"),
        (b"", "no CloudEvent in JSON"),
        (b"[1]", "a JSON array"),
        (b"null", "a JSON null"),
        (b'{"data": 1}', "it has no type"),
        (b'{"type": 1}', "type is a str"),
        (b'{"type": "t", "data": NaN}', "JSON can express"),
        (b'{"type": "t", "id": "\\ud800"}', "message 7 of shop/orders"),
        (b'{"type": "t", "data": "\\ud800"}', "message 7 of shop/orders"),
        (b'{"type": "t", "Bad Name": "x"}', "small letters and digits"),
        (b'{"type": "t", "specversion": "0.3"}', "specversion is not 1.0"),
        (b'{"type": "t", "time": "yesterday"}', "Invalid isoformat"),
        (b'{"type": "t", "time": 5}', "message 7 of shop/orders"),
        (b"[" * 100_000, "message 7 of shop/orders"),
        (b'{"type": "t", "data": ' + b"[" * 2000 + b"]" * 2000 + b"}", "message 7 of shop/orders"),
    ],
)
def test_a_payload_that_is_no_event_is_refused_with_its_message(payload: bytes, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        event(payload)
    assert problem in refused.value.message
    assert "message 7 of shop/orders" in refused.value.message
    assert len(refused.value.message) < 1000


def test_a_payload_that_is_too_long_is_refused() -> None:
    with pytest.raises(Refused, match="100 are permitted"):
        event({"type": "t", "data": "x" * 200}, GatewayLimits(event_bytes=100))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("shop/orders", ConnectorTarget("shop/orders", 0, "")),
        ("shop/orders:till-7", ConnectorTarget("shop/orders", 0, "till-7")),
        ("shop/orders#3", ConnectorTarget("shop/orders", 3, "")),
        ("shop/orders#3:a/b#c:d", ConnectorTarget("shop/orders", 3, "a/b#c:d")),
    ],
)
def test_a_name_has_its_stream_its_partition_and_its_producer(name: str, target: ConnectorTarget) -> None:
    assert target_of(name) == target


@pytest.mark.parametrize("name", ["", "orders", "shop/", "/orders", "shop/orders#", "shop/orders#x", "shop/orders:"])
def test_another_name_is_refused_with_the_syntax(name: str) -> None:
    with pytest.raises(Refused, match=r"NAMESPACE/STREAM, then #PARTITION and :PRODUCER .* shop/orders#3:till-7"):
        target_of(name)
