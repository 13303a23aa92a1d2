"""A record that a program passes for sending, and the conversion of its values to bytes and integers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from wallaroo_spark.errors import LocalProtocolError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Record:
    """One message to send."""

    id: int | None
    """Its point of reference. None: the stream numbers it, which is allowed only for sources that are not replayable.
    """
    payload: bytes
    """Payload of the message."""
    event_time: int | datetime | None = None
    """An integer in the receiver's unit (``eventTimeUnit``), or an aware datetime; None for none."""
    key: bytes | None = None
    """Key; None for none."""


RecordOrPair = Record | tuple[int, bytes]
"""A record, or its id and payload."""


def as_record(given: RecordOrPair) -> Record:
    """The record of a pair, or the record itself."""
    return given if isinstance(given, Record) else Record(*given)


def bytes_of(payload: Any, name: str = "payload") -> bytes:
    """A payload as bytes. Raises :class:`LocalProtocolError` for an object that is not bytes-like."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise LocalProtocolError(f"a {name} is bytes, and this one is {type(payload).__name__}; encode it first")


def key_of(key: Any) -> bytes | None:
    """A key as bytes, or None. Raises :class:`LocalProtocolError` for another type."""
    return key if key is None or type(key) is bytes else bytes_of(key, "key")


def event_time_of(moment: Any) -> int | None:
    """An event time as an integer; a datetime becomes nanoseconds since 1970.

    Raises :class:`LocalProtocolError` for a datetime without a time zone.
    """
    if not isinstance(moment, datetime):
        return cast("int | None", moment)
    if moment.tzinfo is None:
        raise LocalProtocolError(
            f"event time {moment.isoformat()} has no time zone; give an aware datetime, for example with tzinfo=UTC"
        )
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
