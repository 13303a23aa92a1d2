"""One corpus of values that a publisher may send, a function may return and a producer may write, and that break
programs. Tests take them to each place where a payload is decoded or encoded."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

DEPTH = 50_000
LONE = "\ud800"
"""Half of a character, which UTF-8 has no bytes for; JSON can write it as an escape."""

PAYLOADS: dict[str, bytes] = {
    "nested 50,000 deep": b"[" * DEPTH + b"]" * DEPTH,
    "objects nested 50,000 deep": b'{"a":' * DEPTH + b"1" + b"}" * DEPTH,
    "nested 900 deep": b"[" * 900 + b"]" * 900,
    "an opening only": b"[" * DEPTH,
    "a lone surrogate, escaped": b'"\\ud800"',
    "a key with a lone surrogate": b'{"\\udfff":1}',
    "a lone surrogate as bytes": b'"\xed\xa0\x80"',
    "NUL, escaped": b'"a\\u0000b"',
    "NUL as it is": b'"a\x00b"',
    "not UTF-8": b'"\xff\xfe"',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"a":1}',
    "NaN": b"NaN",
    "infinity": b'{"a":[Infinity,-Infinity]}',
    "a float beyond all": b"[1e400,-1e400]",
    "65 bits": b"[18446744073709551616,-9223372036854775809]",
    "a number of 5,000 digits": b"1" * 5000,
    "a key twice": b'{"a":1,"a":2}',
    "no text": b"",
    "only a space": b" ",
    "half a text": b'{"a":',
    "the year 0": b'{"at":"0000-01-01T00:00:00Z"}',
    "the year 10000": b'{"at":"10000-01-01T00:00:00Z"}',
    "an empty name": b'{"":1}',
    "a very long name": b'{"' + b"n" * 100_000 + b'":1}',
    "names of Python": b'{"__class__":"x","__proto__":{"a":1}}',
    "escapes of a terminal": b'"\\u001b[2J\\u202e\\r\\n"',
}
"""Payloads of the content type ``application/json``, by a name."""

VALUES: dict[str, Any] = {
    "a lone surrogate": LONE,
    "a lone surrogate in a list": [LONE],
    "NUL": "a\x00b",
    "NaN": float("nan"),
    "NaN in a list": [float("nan")],
    "infinity": [float("inf")],
    "65 bits": [1 << 64, -(1 << 64)],
    "a number of 5,000 digits": [10**4999],
    "a set": {1, 2},
    "an object": object(),
    "keys of no text": {(1, 2): 3},
    "bytes in JSON": [b"\xff"],
    "a complex number": 1j,
    "an empty text": "",
    "escapes of a terminal": "\x1b[2J\u202e\r\n",
}
"""Values of Python, by a name. :func:`nested` makes the deep ones, which pytest cannot show."""

TEXTS: dict[str, str] = {
    "empty": "",
    "a lone surrogate": LONE,
    "NUL": "a\x00b",
    "very long": "x" * 100_000,
    "escapes of a terminal": "\x1b[2J\u202e\r\n",
    "the year 0": "0000-01-01T00:00:00Z",
    "the year 10000": "10000-01-01T00:00:00Z",
    "the first moment": "0001-01-01T00:00:00+14:00",
    "the last moment": "9999-12-31T23:59:59.999999-12:00",
    "a leap second": "2016-12-31T23:59:60Z",
}
"""Values of attributes and names, by a name."""

EXTENSIONS = {f"e{number}": "v" * 31_457 for number in range(100)}
"""3 MiB of extensions."""


def texts(*payloads: bytes) -> pa.Array:
    """A column of text as Spark makes it of bytes: nothing checks that they are UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(payloads), pa.array(payloads, pa.binary()).buffers())


def nested(depth: int = DEPTH) -> list[Any]:
    """A list in a list, and so on."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


class EvilError(Exception):
    """An error whose own text raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class EvilText(str):
    """A text whose methods are not those of a text."""

    def __str__(self) -> str:
        return EvilText(LONE)

    def __getitem__(self, key: Any) -> str:
        raise KeyError(key)

    def __iter__(self) -> Any:
        raise GeneratorExit

    def encode(self, *arguments: Any) -> bytes:
        """No bytes."""
        raise SystemExit(3)


ERRORS: dict[str, BaseException] = {
    "sys.exit": SystemExit(1),
    "the end of a generator": GeneratorExit(),
    "a key": KeyError("no such key"),
    "no memory": MemoryError(),
    "an interrupt": KeyboardInterrupt(),
    "a base exception": BaseException("bare"),
    "a lone surrogate": ValueError(LONE),
    "NUL and lines": ValueError("a\x00b\nc"),
    "megabytes": ValueError("m" * 3_000_000),
    "no text": EvilError(),
    "an evil text": ValueError(EvilText("x")),
    "a text that is no text": ValueError(object()),
    "an iteration that ends": StopIteration(),
}
"""Errors that a function may raise, by a name."""
