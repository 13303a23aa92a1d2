"""What a worker sees of a body: its form, and the service that it is from."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import evil_values as evil
from tests.doors.otlp.requests import logs, metrics, traces
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.otlp.bodies import LISTS, MOST_NAME_BYTES, UNNAMED, client_of
from wallaroo_spark.doors.otlp.status import of_otlp

MAKERS: dict[str, Callable[[str | None], Any]] = {
    "logs": lambda service: logs("late", service=service),
    "metrics": metrics,
    "traces": lambda service: traces("GET /", service=service),
}


def as_json(signal: str, service: object = "shop") -> bytes:
    attributes = [{"key": "a", "value": {"intValue": "1"}}, {"key": "service.name", "value": {"stringValue": service}}]
    return json.dumps({LISTS[signal]: [{"resource": {"attributes": attributes}}]}).encode()


@pytest.mark.parametrize("signal", LISTS)
def test_the_service_is_found_in_each_form(signal: str) -> None:
    body = MAKERS[signal]("shop").SerializeToString()

    assert client_of(signal, body) == "shop"
    assert client_of(signal, gzip.compress(body)) == "shop"
    assert client_of(signal, as_json(signal)) == "shop"


def test_it_is_that_of_the_first_resource() -> None:
    request = traces("a", service="first")
    request.MergeFrom(traces("b", service="second"))

    assert client_of("traces", request.SerializeToString()) == "first"


@pytest.mark.parametrize("service", [None, "", "  "], ids=["no service", "an empty name", "a name of spaces"])
def test_a_service_without_a_name_has_one(service: str | None) -> None:
    assert client_of("traces", traces("a", service=service).SerializeToString()) == UNNAMED


def test_a_name_is_cut_between_two_characters() -> None:
    found = client_of("traces", traces("a", service="é" * 100_000).SerializeToString())

    assert found == "é" * (MOST_NAME_BYTES // 2)
    assert client_of("traces", as_json("traces", "x" + "é" * 1000)) == "x" + "é" * (MOST_NAME_BYTES // 2 - 1)


def test_a_name_that_is_no_text_is_read_as_far_as_it_is() -> None:
    body = traces("a", service="shXp").SerializeToString().replace(b"shXp", b"sh\xffp")

    assert client_of("traces", body) == "shp"
    assert client_of("traces", as_json("traces", evil.LONE)) == UNNAMED
    assert client_of("traces", as_json("traces", 7)) == UNNAMED


@pytest.mark.parametrize("signal", LISTS)
def test_a_request_without_records_is_empty(signal: str) -> None:
    empty = json.dumps({LISTS[signal]: []}).encode()

    assert [client_of(signal, body) for body in (b"", gzip.compress(b""), b"{}", empty)] == [None] * 4


EVIL = {
    "a text": b"hello",
    "a length that goes beyond": b"\x0a\x7fab",
    "a length of 10 bytes": b"\x0a" + b"\xff" * 9 + b"\x01",
    "a number without an end": b"\x0a" + b"\xff" * 20,
    "a group": b"\x0b\x0c",
    "another field": b"\x12\x00",
    "half a gzip": gzip.compress(b"\x0a\x7fab")[:-8],
    "no gzip": b"\x1f\x8bxxxxxxxxxxxxxxx",
    "a lie within gzip": gzip.compress(b"\x0a\x7fab"),
    "no list": b'{"resourceSpans": {"a": 1}}',
    "the list of another signal": b'{"resourceLogs": [{}]}',
    "half a JSON": b'{"resourceSpans": [',
}


@pytest.mark.parametrize("name", EVIL)
def test_a_body_that_is_no_request_is_refused(name: str) -> None:
    with pytest.raises(Problem) as refused:
        client_of("traces", EVIL[name])
    assert of_otlp(refused.value).code == "otlp-body-unreadable"


@pytest.mark.parametrize("name", evil.PAYLOADS)
def test_every_evil_payload_is_refused_or_named(name: str) -> None:
    for body in (evil.PAYLOADS[name], gzip.compress(evil.PAYLOADS[name])):
        with suppress(Problem):
            assert client_of("logs", body) in (None, UNNAMED)


def test_a_bomb_is_refused_by_its_own_size() -> None:
    bomb = gzip.compress(traces("a").SerializeToString() + bytes(40 << 20), 1)

    with pytest.raises(Problem, match="when it is decompressed"):
        client_of("traces", bomb)


def test_messages_nested_without_end_are_not_followed() -> None:
    body = b""
    for _ in range(2000):
        length = len(body)
        body = b"\x0a" + (bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])) + body

    assert client_of("traces", body) == UNNAMED


def test_a_million_fields_are_not_all_looked_at() -> None:
    assert client_of("traces", b"\x0a\x00" * (1 << 20)) == UNNAMED


@given(st.binary(max_size=200))
def test_any_bytes_are_named_or_refused(data: bytes) -> None:
    for body in (data, b"\x0a" + bytes([min(len(data), 127)]) + data):
        try:
            name = client_of("traces", body)
        except Problem:
            continue
        assert name is None or 0 < len(name.encode()) <= MOST_NAME_BYTES
