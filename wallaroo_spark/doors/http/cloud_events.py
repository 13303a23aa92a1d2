"""CloudEvents 1.0 over HTTP, in the binary, the structured and the batched mode. Pure.

An event becomes a message whose value is the event in CloudEvents' JSON format, in whatever mode it came. Its key is
the extension ``partitionkey``, its event time the attribute ``time``. Source: the CloudEvents specification, its HTTP
binding and its JSON format, version 1.0.2.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

from wallaroo_spark.doors.http.json_body import read_json
from wallaroo_spark.doors.http.problems import Problem

STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
_REQUIRED = ("id", "source", "specversion", "type")
_OPTIONAL = ("datacontenttype", "dataschema", "subject", "time")
_NAME = re.compile(r"[a-z0-9]+")
_MEDIA_TYPE = re.compile(r"[^\s/;]+/[^\s/;]+\s*(;.*)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)
_QUOTED, _ESCAPED = re.compile(r'"((?:[^"\\]|\\.)*)"'), re.compile(r"\\(.)")
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventMessage(NamedTuple):
    """One event as a message."""

    value: bytes
    key: bytes | None
    event_time: int | None
    """In the unit of the option ``eventTimeUnit``."""
    identity: str
    """Source and id, which no other event has."""


def is_binary(kind: str, fields: Mapping[str, str]) -> bool:
    """Whether a request with a media type and fields has an event in the binary mode.

    The other modes may have the same fields.
    """
    return "ce-specversion" in fields and not kind.startswith("application/cloudevents")


def structured(event: Any, body: bytes, unit: str) -> EventMessage:
    """An event in the JSON format; ``body`` are the bytes that were sent. Raises :class:`Problem`."""
    if not isinstance(event, dict):
        raise _broken("an event is a JSON object")
    if "data" in event and "data_base64" in event:
        raise _broken("an event has data or data_base64, not both")
    attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64")}
    return _event(attributes, body, unit)


def binary(fields: Mapping[str, str], body: bytes, unit: str) -> EventMessage:
    """An event in the binary mode: attributes in fields, data in the body. Raises :class:`Problem`."""
    attributes = {name[3:]: _decoded(name, value.strip()) for name, value in fields.items() if name.startswith("ce-")}
    for name in ("data", "datacontenttype"):
        if name in attributes:
            raise _broken(f"there is no field ce-{name}; data is the body, and its type is Content-Type")
    media = fields.get("content-type", "").strip()
    if media:
        attributes["datacontenttype"] = media
    head = json.dumps(attributes, ensure_ascii=False)[:-1]
    kind = media.partition(";")[0].strip().lower()
    if not body:
        value = f"{head}}}".encode()
    elif kind.endswith(("/json", "+json")):
        read_json(body)
        value = f'{head}, "data": '.encode() + body.strip() + b"}"
    elif kind.startswith("text/") and (text := _text(body)) is not None:
        value = f'{head}, "data": {json.dumps(text, ensure_ascii=False)}}}'.encode()
    else:
        value = f'{head}, "data_base64": "{base64.b64encode(body).decode()}"}}'.encode()
    return _event(attributes, value, unit)


def _event(attributes: Mapping[str, Any], value: bytes, unit: str) -> EventMessage:
    for name in _REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise _broken(f"the attribute {name} is missing, or is no text")
    if attributes["specversion"] != "1.0":
        raise _broken(f"specversion is {str(attributes['specversion'])[:16]!r}; 1.0 is known")
    for name, one in attributes.items():
        if not _NAME.fullmatch(name):
            raise _broken(f"the name of attribute {name[:64]!r} has other characters than a-z and 0-9")
        if one is not None and not isinstance(one, str if name in _OPTIONAL else str | int):
            raise _broken(
                f"the attribute {name[:64]} is neither a text nor, as an extension may be, a number or a flag"
            )
        if name in _OPTIONAL and one == "":
            raise _broken(f"the attribute {name} is empty; leave it out")
    if (media := attributes.get("datacontenttype")) and not _MEDIA_TYPE.fullmatch(media):
        raise _broken(f"datacontenttype is {media[:64]!r}; it is a media type")
    key = attributes.get("partitionkey")
    identity = f"{attributes['source']}\0{attributes['id']}"
    return EventMessage(
        value, str(key).encode() if key is not None else None, _time(attributes.get("time"), unit), identity
    )


def _decoded(name: str, value: str) -> str:
    """The text of a field: double quotes are taken away, as in earlier versions of the specification, then percents."""
    if quoted := _QUOTED.fullmatch(value):
        value = _ESCAPED.sub(r"\1", quoted[1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:
        raise _broken(f"the field {name[:64]} is not percent-encoded UTF-8") from None


def _time(text: str | None, unit: str) -> int | None:
    if text is None:
        return None
    try:
        if not _TIME.fullmatch(text.upper()):
            raise ValueError("another form of ISO 8601")
        at = datetime.fromisoformat(text.upper())
    except ValueError:
        raise _broken(f"time is {text[:64]!r}; it is a time as in RFC 3339") from None
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    return micros * 1000 // _UNITS[unit] if micros >= 0 else None


def _text(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _broken(why: str) -> Problem:
    return Problem("http-body-unreadable", f"the CloudEvent cannot be taken: {why}")
