"""The arguments of a program's calls: checked, and converted to bytes and integers.

Each error names the argument, its value, the expected type and the way out. It is raised before anything is sent.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from math import isnan
from operator import index
from typing import Any

from wallaroo_spark.errors import ArgumentTypeError, ArgumentValueError
from wallaroo_spark.protocol import MAX_NAME_BYTES, U64_MAX

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 60
"""The most characters of a wrong value in an error message. A choice: enough to recognise it."""


def wrong_type(expected: str, value: Any, argument: str, remedy: str = "") -> ArgumentTypeError:
    """The error for an argument of the wrong type; ``expected`` is its name and its type, as ``a key is a str``."""
    way_out = f"; {remedy}" if remedy else ""
    return ArgumentTypeError(
        f"{expected}, and this one is {type(value).__name__}: {shown(value)}{way_out}",
        code="argument-type",
        argument=argument,
    )


def bytes_of(payload: Any, name: str = "payload") -> bytes:
    """A payload as bytes. Raises :class:`ArgumentTypeError` for an object that is not bytes-like."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        way_out = "encode it first, for example with .encode()"
    elif payload is None:
        way_out = "use send_boundary for a marker without payload, and b'' for an empty message"
        way_out = way_out if name == "payload" else "encode it first"
    else:
        way_out = "encode it first, for example with json.dumps(…).encode()"
    raise wrong_type(f"a {name} is bytes", payload, name, way_out)


def key_of(key: Any) -> bytes | None:
    """A key as bytes, or None. Raises :class:`ArgumentTypeError` for another type."""
    return key if key is None or type(key) is bytes else bytes_of(key, "key")


def id_of(message_id: Any) -> int:
    """A message id as an int. Raises :class:`ArgumentTypeError` for another type."""
    return integer_of(message_id, "message id")


def integer_of(value: Any, name: str) -> int:
    """An integer argument as an int; integers of other libraries are accepted.

    Raises :class:`ArgumentTypeError` for another type, also for a bool.
    """
    if type(value) is int:
        return value
    if not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:
            pass
    way_out = ""
    if isinstance(value, str | bytes):
        way_out = f"convert it, for example with int({shown(value)})"
    elif isinstance(value, float):
        way_out = "a float is not exact, so convert it to an int first"
    article = "an" if name[:1] in "aeiou" else "a"
    raise wrong_type(f"{article} {name} is an integer", value, name, way_out)


def u64_of(value: Any, name: str) -> int:
    """An unsigned 64-bit integer argument. Raises as :func:`integer_of`, and :class:`ArgumentValueError`."""
    number = integer_of(value, name)
    if not 0 <= number <= U64_MAX:
        raise ArgumentValueError(
            f"{name} {number} is not an unsigned 64-bit integer (0 to {U64_MAX})", code="id-out-of-range", argument=name
        )
    return number


def event_time_of(moment: Any) -> int | None:
    """An event time as an integer; a datetime becomes nanoseconds since 1970.

    Raises :class:`ArgumentTypeError` for another type, and :class:`ArgumentValueError` for a datetime without a time
    zone.
    """
    if moment is None or type(moment) is int:
        return moment
    if isinstance(moment, datetime):
        check_aware(moment, "event time", "event_time")
        since = moment - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
    if isinstance(moment, date | str):
        expected = "an event time is an integer or an aware datetime"
        raise wrong_type(expected, moment, "event_time", "convert it to a datetime with a time zone")
    return integer_of(moment, "event time")


def check_aware(moment: datetime, name: str, argument: str, remedy: str = "for example with tzinfo=UTC") -> None:
    """Raise :class:`ArgumentValueError` for a datetime without a time zone; ``name`` says in the error what it is."""
    if moment.tzinfo is None:
        raise ArgumentValueError(
            f"{name} {moment.isoformat()} has no time zone; give an aware datetime, {remedy}",
            code="time-zone-missing",
            argument=argument,
        )


def stream_name_of(name: Any) -> str:
    """The name of a stream. Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError`."""
    if not isinstance(name, str):
        way_out = "decode it, for example with .decode()" if isinstance(name, bytes) else ""
        raise wrong_type("a stream name is a str", name, "name", way_out)
    size = len(utf8_of(name, "stream name"))
    if size > MAX_NAME_BYTES:
        raise ArgumentValueError(
            f"stream name {name[:40]!r}… has more than {MAX_NAME_BYTES} bytes, namely {size}; shorten it",
            code="name-too-long",
            argument="name",
        )
    return name


def utf8_of(text: str, name: str) -> bytes:
    """The text as UTF-8. Raises :class:`ArgumentValueError` for a text that has none."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ArgumentValueError(
            f"{name} {shown(text)} has a lone surrogate, which UTF-8 has no bytes for; replace that character",
            code="invalid-text",
            argument=name,
        ) from None


def timeout_of(seconds: Any, name: str = "timeout") -> float | None:
    """A time limit in seconds, or None for none. Raises :class:`ArgumentTypeError` and :class:`ArgumentValueError`."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise wrong_type(f"{name} is a number of seconds or None", seconds, name, "write it as 1.5, for example")
    if isnan(seconds) or seconds < 0:
        raise ArgumentValueError(
            f"{name} is {seconds} seconds; give 0 or more, or None for no limit",
            code="option-out-of-range",
            argument=name,
        )
    return seconds


def callable_of(value: Any, name: str) -> Any:
    """A function that is called later. Raises :class:`ArgumentTypeError` for an object that cannot be called."""
    if not callable(value):
        raise wrong_type(f"{name} is a function", value, name, "give the function itself")
    return value


def shown(value: Any) -> str:
    """A wrong value for an error message, shortened. It never raises: a value may be nested too deeply to be shown."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
