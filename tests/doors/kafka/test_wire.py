"""The tables of requests and responses against Kafka's own schemas, as the library kio generates them."""

from __future__ import annotations

import contextlib
import importlib
import io
import random
from typing import Any

import pytest

from wallaroo_spark.doors.kafka.apis import SERVED, Api, Code
from wallaroo_spark.doors.kafka.wire import Malformed, WireField, WireMessage, read, write

kio_serial = pytest.importorskip("kio.serial")

_NAMES = {api: api.name.lower() for api in Api}
_CLASSES = {api: "".join(word.capitalize() for word in api.name.split("_")) for api in Api}
_WIDTHS = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}
_VERSIONS = [(api, version) for api, row in SERVED.items() for version in range(row.oldest, row.newest + 1)]
_MOMENTS = {"log_append_time", "timestamp", "lifetime", "throttle", "timeout", "max_wait"}
_ERRORS = {"error"}


def _example(field: WireField, version: int, chance: random.Random) -> Any:
    if field.nullable <= version and chance.random() < 0.3:
        return None
    if field.array:
        return [_single(field, version, chance) for _ in range(chance.randrange(3))]
    return _single(field, version, chance)


def _single(field: WireField, version: int, chance: random.Random) -> Any:
    if not isinstance(field.kind, str):
        return _values(field.kind, version, chance)
    if field.name in _ERRORS:
        return chance.choice(list(Code)).value
    if field.name in _MOMENTS:
        return chance.randrange(1_000_000) * 1000
    match field.kind:
        case "bool":
            return chance.random() < 0.5
        case "text":
            return "ö" * chance.randrange(200)
        case "bytes":
            return chance.randbytes(chance.randrange(200))
    return chance.getrandbits(_WIDTHS[field.kind])


def _values(fields: tuple[WireField, ...], version: int, chance: random.Random) -> dict[str, Any]:
    return {field.name: _example(field, version, chance) for field in fields if field.since <= version <= field.until}


def _entity(api: Api, version: int, kind: str) -> Any:
    module = importlib.import_module(f"kio.schema.{_NAMES[api]}.v{version}.{kind}")
    return getattr(module, f"{_CLASSES[api]}{kind.capitalize()}")


@pytest.mark.parametrize(("api", "version"), _VERSIONS)
def test_every_version_has_the_bytes_of_kafkas_own_schema(api: Api, version: int) -> None:
    row, chance = SERVED[api], random.Random(f"{api} {version}")
    for kind, message in (("request", row.request), ("response", row.response)):
        entity = _entity(api, version, kind)
        for _ in range(20):
            values = _values(message.fields, version, chance)
            data = write(message, version, values)
            parsed, size = kio_serial.entity_reader(entity)(data, 0)
            out = io.BytesIO()
            kio_serial.entity_writer(entity)(out, parsed)
            assert (size, out.getvalue()) == (len(data), data)
            assert read(message, version, data) == values


@pytest.mark.parametrize(("api", "version"), _VERSIONS)
def test_a_flexible_version_is_that_of_kafkas_own_schema(api: Api, version: int) -> None:
    assert _entity(api, version, "request").__flexible__ == (version >= SERVED[api].request.flexible)
    assert _entity(api, version, "response").__flexible__ == (version >= SERVED[api].response.flexible)


@pytest.mark.parametrize(("api", "version"), _VERSIONS)
def test_cut_and_changed_requests_are_malformed_or_read_and_nothing_else(api: Api, version: int) -> None:
    message, chance = SERVED[api].request, random.Random(f"{api} {version}")
    data = write(message, version, _values(message.fields, version, chance))
    for end in range(len(data)):
        with pytest.raises(Malformed):
            read(message, version, data[:end])
    for at in range(min(len(data), 200)):
        for value in (0, 0x7F, 0x80, 0xFF):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            with contextlib.suppress(Malformed):
                read(message, version, changed)


@pytest.mark.parametrize("head", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfb", b"\x00\x00\x27\x11" + bytes(80_000)])
def test_an_array_that_is_longer_than_the_request_is_not_begun(head: bytes) -> None:
    with pytest.raises(Malformed, match="announces an array"):
        read(WireMessage((WireField("topics", "text", array=True),)), 0, head)


def test_a_compact_array_that_is_longer_than_the_request_is_not_begun() -> None:
    with pytest.raises(Malformed, match="announces an array"):
        read(SERVED[Api.METADATA].request, 9, b"\xff\xff\xff\xff\x0f")


def test_the_request_for_all_topics_of_librdkafka_is_read() -> None:
    # It leaves three bytes too many in front of the flags.
    found = read(SERVED[Api.METADATA].request, 9, bytes.fromhex("00000000 010000 00"))
    assert found["topics"] is None
