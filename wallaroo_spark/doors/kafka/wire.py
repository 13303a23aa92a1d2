"""Bodies of Kafka's requests and responses as tables of fields, with one reader and one writer for all versions.

A field has the range of versions in which it is on the wire. From a message's ``flexible`` version on, its texts,
bytes and arrays have compact lengths, and each structure ends with tagged fields, which are skipped. The library that
generates this code from Kafka's own schemas reserves memory for as many elements as a peer announces, so ten bytes end
the process; the tests compare these tables with it, version by version. Source: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

MOST_ELEMENTS = 10_000
"""Most elements of all arrays of one request. A choice: far more than the partitions of a producer's request.

It bounds the memory of a decoded request, whose smallest elements take many times their bytes.
"""
_EVERY = 1 << 15
"""A version that is higher than all."""
_FIXED = {
    "i8": struct.Struct(">b"),
    "i16": struct.Struct(">h"),
    "i32": struct.Struct(">i"),
    "i64": struct.Struct(">q"),
    "bool": struct.Struct(">?"),
}


class Malformed(Exception):
    """Bytes that are no message of their kind and version. The connection that sent them is closed."""


@dataclass(frozen=True)
class WireField:
    """One field of a structure."""

    name: str
    kind: str | tuple[WireField, ...]
    """i8, i16, i32, i64, bool, text or bytes, or the fields of a structure."""
    since: int = 0
    """The first version that has it."""
    until: int = _EVERY
    """The last version that has it."""
    array: bool = False
    """Whether it is an array of its kind."""
    nullable: int = _EVERY
    """The first version in which it may be null."""


@dataclass(frozen=True)
class WireMessage:
    """A request or a response."""

    fields: tuple[WireField, ...]
    flexible: int = _EVERY
    """The first version with compact lengths and tagged fields."""


class WireReader:
    """Reads values from one request. Every read raises :class:`Malformed` where the bytes end before the value."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at
        self._left = MOST_ELEMENTS

    def fixed(self, kind: str) -> Any:
        """A number or a flag."""
        form = _FIXED[kind]
        try:
            (value,) = form.unpack_from(self.data, self.at)
        except struct.error:
            raise Malformed("the request ends within a number") from None
        self.at += form.size
        return value

    def varint(self) -> int:
        """An unsigned number of variable length, of 32 bits at most."""
        value = 0
        for shift in range(0, 35, 7):
            if self.at >= len(self.data):
                break
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Malformed("the request has a number of variable length without an end")

    def raw(self, *, compact: bool, short: bool) -> bytes | None:
        """Bytes with their length in front of them; None for null. ``short`` says that the length has 16 bits."""
        length = self.varint() - 1 if compact else self.fixed("i16" if short else "i32")
        if length < -1 or length > len(self.data) - self.at:
            raise Malformed(f"the request announces {length} bytes and has {len(self.data) - self.at}")
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length : self.at]

    def text(self, *, compact: bool) -> str | None:
        """A text; None for null."""
        found = self.raw(compact=compact, short=True)
        try:
            return None if found is None else found.decode()
        except UnicodeDecodeError:
            raise Malformed("the request has a text that is not UTF-8") from None

    def count(self, *, compact: bool) -> int:
        """The length of an array; -1 for null."""
        count = self.varint() - 1 if compact else self.fixed("i32")
        if count < -1 or count > self._left or count > len(self.data) - self.at:
            raise Malformed(f"the request announces an array of {count} elements, more than it has or may have")
        self._left -= max(count, 0)
        return int(count)

    def skip_tags(self) -> None:
        """Skip the tagged fields at the end of a structure."""
        for _ in range(self.varint()):
            self.varint()
            length = self.varint()
            if length > len(self.data) - self.at:
                raise Malformed("the request ends within a tagged field")
            self.at += length

    def structure(self, fields: tuple[WireField, ...], version: int, *, compact: bool) -> dict[str, Any]:
        """The fields of a structure that this version has, by name."""
        found = {
            field.name: self._field(field, version, compact)
            for field in fields
            if field.since <= version <= field.until
        }
        if compact:
            self.skip_tags()
        return found

    def _field(self, field: WireField, version: int, compact: bool) -> Any:
        if not field.array:
            value = self._value(field.kind, version, compact)
        elif (count := self.count(compact=compact)) < 0:
            value = None
        else:
            value = [self._value(field.kind, version, compact) for _ in range(count)]
        if value is None and version < field.nullable:
            raise Malformed(f"the request has null as {field.name}")
        return value

    def _value(self, kind: str | tuple[WireField, ...], version: int, compact: bool) -> Any:
        if not isinstance(kind, str):
            return self.structure(kind, version, compact=compact)
        if kind == "text":
            return self.text(compact=compact)
        if kind == "bytes":
            return self.raw(compact=compact, short=False)
        return self.fixed(kind)


def read(message: WireMessage, version: int, data: bytes, at: int = 0) -> dict[str, Any]:
    """The fields of a body that begins at ``at``. Bytes behind the body are left out, as by brokers.

    librdkafka has three more of them when it asks for the metadata of all topics in version 9.
    """
    return WireReader(data, at).structure(message.fields, version, compact=version >= message.flexible)


def write(message: WireMessage, version: int, values: dict[str, Any]) -> bytes:
    """The bytes of a body. ``values`` has the fields by name, in all versions."""
    out: list[bytes] = []
    _structure(out, message.fields, version, values, version >= message.flexible)
    return b"".join(out)


def _structure(
    out: list[bytes], fields: tuple[WireField, ...], version: int, values: dict[str, Any], compact: bool
) -> None:
    for field in fields:
        if field.since <= version <= field.until:
            value = values[field.name]
            if not field.array:
                _value(out, field.kind, version, value, compact)
            else:
                count = -1 if value is None else len(value)
                out.append(_varint(count + 1) if compact else _FIXED["i32"].pack(count))
                for one in value or ():
                    _value(out, field.kind, version, one, compact)
    if compact:
        out.append(b"\0")


def _value(out: list[bytes], kind: str | tuple[WireField, ...], version: int, value: Any, compact: bool) -> None:
    if not isinstance(kind, str):
        _structure(out, kind, version, value, compact)
    elif kind in ("text", "bytes"):
        data = value.encode() if isinstance(value, str) else value
        length = -1 if data is None else len(data)
        out.append(_varint(length + 1) if compact else _FIXED["i16" if kind == "text" else "i32"].pack(length))
        out.append(data or b"")
    else:
        out.append(_FIXED[kind].pack(value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
