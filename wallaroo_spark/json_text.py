"""JSON as this package reads and writes it: strict UTF-8, no NaN, and every failure is a ValueError or a TypeError.

Anybody may publish a payload, so a text that is nested 50,000 deep, or that has numbers of 5,000 digits, must be an
error like any other one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

_BOM = "\ufeff"
_TOO_DEEP = "it is nested too deeply"


def _refuse(name: str) -> Any:
    raise ValueError(f"it has {name}, which JSON does not have")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""One for all: a call of ``json.loads`` with an argument makes a new one."""


def load_json(text: bytes | str) -> Any:
    """The value of a JSON text. Of a name that an object has twice, the last value stays.

    Raises ValueError for a text that is none: also for one that is nested too deeply, is not in UTF-8, or has NaN or an
    infinity.
    """
    if not isinstance(text, str):
        text = text.decode()
    try:
        return _DECODER.decode(text.removeprefix(_BOM))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def dump_json(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON in UTF-8, without spaces. A lone surrogate is written as its escape.

    ``default`` makes a value of another type one that JSON has. Raises ValueError and TypeError for a value that JSON
    cannot express: also for one that is nested too deeply, and for NaN and infinities.
    """
    try:
        try:
            return _encoder(default, False).encode(value).encode()
        except UnicodeEncodeError:
            return _encoder(default, True).encode(value).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _encoder(default: Callable[[Any], Any] | None, ascii_only: bool) -> json.JSONEncoder:
    return json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"), default=default)


def json_line(value: Any) -> str:
    """A value as one line of JSON for a terminal or a program: what cannot be printed is written as its escape.

    Raises as :func:`dump_json`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.isprintable():
        return text
    # JSON's own text is printable, so these stand in strings.
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
