"""Bodies of OTLP requests, as far as a worker looks into them: their form, and the service that they are from.

A body stays as it was sent, also compressed by gzip; reading tasks decode it. Its first bytes tell its form: gzip
begins with its own magic number, JSON with a brace, and any other body is a protobuf message. Pure.
Source: ``docs/doors/opentelemetry.md``; opentelemetry-proto, collector services.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from wallaroo_spark.doors.http.encodings import EXPANSION, FREE_BYTES
from wallaroo_spark.doors.http.json_body import read_json
from wallaroo_spark.doors.http.problems import Problem

LISTS = {"logs": "resourceLogs", "metrics": "resourceMetrics", "traces": "resourceSpans"}
"""The signals, which are the names of streams, and the field of a request's JSON form that has its records."""
GZIP, BRACE = b"\x1f\x8b", b"{"
LOOKED_INTO = 64 << 10
"""The bytes from the beginning of a body that the service's name is looked for in. A choice: names of resources come
first, and have some hundred bytes."""
MOST_UNPACKED = 32 << 20
"""The most bytes that a compressed body has when it is decompressed. A choice: exporters divide what is longer than
4 MiB, and a task needs many times this memory for the worst message."""
MOST_FIELDS = 1024
"""The most fields of one message that are looked at. A choice: resources have some ten attributes."""
MOST_NAME_BYTES = 128
"""The bytes of a service's name that name its client; what follows is left out."""
UNNAMED = "unnamed"
"""The client of requests whose first resource has no service.name."""
_LENGTHS = {1: 8, 5: 4}
"""The bytes of a field's value by its wire type, where these are fixed."""
_SERVICE = b"service.name"


def client_of(signal: str, body: bytes) -> str | None:
    """The name of the service that the first resource of a request has; None for a request without records.

    Raises :class:`Problem` for a body that is no request, as far as can be seen without decoding it.
    """
    if body[:1] == BRACE:
        return _client_of_json(LISTS[signal], read_json(body))
    data, whole = body, True
    if body[:2] == GZIP:
        data, whole = _unpacked(body)
    if whole and not data:
        return None
    try:
        return _name(_service(memoryview(data), whole))
    except _Broken as error:
        raise Problem("otlp-body-unreadable", f"the body is no OTLP request as protobuf: {error}") from None


def _unpacked(body: bytes) -> tuple[bytes, bool]:
    """The beginning of a compressed body, and whether that is all."""
    reader = zlib.decompressobj(wbits=31)
    try:
        data = reader.decompress(body, LOOKED_INTO)
    except zlib.error as error:
        raise Problem("otlp-body-unreadable", f"the body is not gzip: {error}") from None
    if reader.eof:
        return data, True
    if len(data) < LOOKED_INTO:
        raise Problem("otlp-body-unreadable", "the body ends within its gzip data")
    # gzip ends with the decompressed size. A body that lies about it is left out where it is decoded.
    size = int.from_bytes(body[-4:], "little")
    most = min(MOST_UNPACKED, max(FREE_BYTES, EXPANSION * len(body)))
    if size > most:
        raise Problem(
            "otlp-body-too-large",
            f"the body of {len(body)} bytes has {size} when it is decompressed, and at most {most}; let the exporter "
            "send fewer records a batch",
        )
    return data, False


def _client_of_json(field: str, document: Any) -> str | None:
    if not isinstance(document, dict):
        raise Problem("otlp-body-unreadable", "a request as JSON is an object")
    if not document:
        return None
    found = document.get(field)
    if not isinstance(found, list):
        raise Problem("otlp-body-unreadable", f"the request has no list {field!r}")
    if not found:
        return None
    try:
        attributes = found[0]["resource"]["attributes"]
        names = [one["value"]["stringValue"] for one in attributes if one["key"] == _SERVICE.decode()]
        return _name(names[0].encode(errors="ignore"))
    except (KeyError, IndexError, TypeError, AttributeError):
        # What else is wrong is found where the body is decoded.
        return UNNAMED


def _name(found: bytes) -> str:
    return found[:MOST_NAME_BYTES].decode(errors="ignore").strip() or UNNAMED


class _Broken(Exception):
    pass


def _service(data: memoryview, whole: bool) -> bytes:
    """The service.name of the first resource; empty when it is not found.

    The records of all signals begin alike: field 1 of a request is a list with a resource in field 1 of each element,
    whose attributes are its field 1. With ``whole`` the lengths of the outermost fields are checked.
    """
    first: memoryview | None = None
    for number, value in _fields(data, whole):
        if number != 1:
            raise _Broken(f"field {number} is none of a request")
        if first is None:
            first = value
        if not whole:
            break
    for message in _inner(first):
        for resource in _inner(message):
            found = {number: value for number, value in _each(resource) if number in (1, 2)}
            if bytes(found.get(1, b"")) == _SERVICE:
                return next((bytes(value) for number, value in _each(found.get(2)) if number == 1), b"")
        break
    return b""


def _inner(message: memoryview | None) -> Iterator[memoryview]:
    return (value for number, value in _each(message) if number == 1)


def _each(message: memoryview | None) -> Iterator[tuple[int, memoryview]]:
    """The fields of an inner message, as far as they can be read."""
    try:
        yield from _fields(message or memoryview(b""), whole=False)
    except _Broken:
        return


def _fields(data: memoryview, whole: bool) -> Iterator[tuple[int, memoryview]]:
    """The numbers and values of the fields with a length. With ``whole`` the last one must end where the data ends."""
    at = 0
    for _ in range(MOST_FIELDS):
        if at >= len(data):
            break
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            _, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            yield number, data[at : at + length]
            at += length
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
        else:
            raise _Broken(f"wire type {kind} at byte {at}")
        if whole and at > len(data):
            raise _Broken(f"a field ends at byte {at}, and the body has {len(data)}")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise _Broken(f"it ends within a number, at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _Broken(f"a number of more than 10 bytes at byte {at}")
