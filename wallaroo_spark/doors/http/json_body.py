"""JSON bodies: checked, and divided into the elements of an array, each as the bytes that were sent. Pure."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from wallaroo_spark.doors.http.problems import Problem

DOCUMENT_BYTES = 16 << 20
"""Longest body that is read as one JSON document, in bytes. A choice: reading takes several times its memory."""
_SPACE = " \t\n\r"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def read_json(body: bytes) -> Any:
    """The value of a JSON document. Raises :class:`Problem`."""
    text = _text(body)
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from None


def elements(body: bytes) -> list[tuple[Any, bytes]]:
    """The elements of a JSON array, each as value and bytes. Raises :class:`Problem` for another document."""
    text = _text(body)
    at = _behind_space(text, 0)
    found: list[tuple[Any, bytes]] = []
    try:
        if text[at : at + 1] != "[":
            raise ValueError("an array begins with [")
        at = _behind_space(text, at + 1)
        if text[at : at + 1] == "]":
            _check_end(text, at + 1)
            return found
        while True:
            value, end = _DECODER.raw_decode(text, at)
            found.append((value, text[at:end].encode()))
            at = _behind_space(text, end)
            sign = text[at : at + 1]
            if sign == "]":
                _check_end(text, at + 1)
                return found
            if sign != ",":
                raise ValueError(f"a comma or ] is expected behind element {len(found)}, at character {at}")
            at = _behind_space(text, at + 1)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from None


def begins_array(body: bytes) -> bool:
    """Whether the first character that is no white space begins an array."""
    return body[:4096].lstrip()[:1] == b"["


def _text(body: bytes) -> str:
    if len(body) > DOCUMENT_BYTES:
        raise Problem(
            "http-body-too-large",
            f"a JSON document of {len(body)} bytes is longer than {DOCUMENT_BYTES}; send one document a line as "
            "application/x-ndjson",
        )
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem("http-body-unreadable", f"the body is not UTF-8 at byte {error.start}") from None


def _behind_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _check_end(text: str, at: int) -> None:
    if (at := _behind_space(text, at)) != len(text):
        raise ValueError(f"something follows the array at character {at}")


def _unreadable(error: Exception) -> Problem:
    why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
    return Problem("http-body-unreadable", f"the body is not JSON: {why}")
