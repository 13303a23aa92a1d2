"""Payloads as Python values: bytes, texts and JSON, by their content types. Pure."""

from __future__ import annotations

import json
from typing import Any

from wallaroo_spark.connector.arguments import shown
from wallaroo_spark.errors import ArgumentTypeError

BYTES_TYPE = "application/octet-stream"
TEXT_TYPE = "text/plain; charset=utf-8"
JSON_TYPE = "application/json"
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_value(value: Any, name: str = "data") -> tuple[bytes, str]:
    """A payload's bytes and its content type: bytes stay, a str becomes UTF-8 text, all else becomes JSON.

    Raises :class:`ArgumentTypeError` for a value that JSON cannot express.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), BYTES_TYPE
    if isinstance(value, str):
        return value.encode(), TEXT_TYPE
    try:
        return _JSON.encode(value).encode(), JSON_TYPE
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"{name} is bytes, a str or a value that JSON can express, and this one is {type(value).__name__}: "
            f"{shown(value)} ({error}); encode it first",
            code="argument-type",
            argument=name,
        ) from None


def decode_value(data: bytes | None, content_type: str) -> Any:
    """The value of a payload: JSON is parsed, a text becomes a str, all else stays bytes; None without a payload.

    Bytes that are not as the content type says stay bytes.
    """
    if data is None:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == JSON_TYPE or kind.endswith("+json"):
            return json.loads(data)
        if kind.startswith("text/"):
            return data.decode()
    except ValueError:
        pass
    return data
