"""The primitive values: variable-length integers, byte arrays, headers and ranges.

Source: ``docs/aqueduct/protocol.md#values``.
"""

from __future__ import annotations

from collections.abc import Iterable

from wallaroo_spark.aqueduct.violations import Rule, violation

U64_MAX = 2**64 - 1
LONGEST_VARINT = 10
"""Bytes of the largest integer: 64 bits, 7 a byte."""
LONGEST_RANGES = 128 * 1024
"""The most bytes of ranges.

A choice: a window of 10,000 messages with a gap between every two has some 100 KB at five bytes a gap.
"""

Headers = tuple[tuple[str, bytes], ...]
"""Headers in their order; a key may occur more than once."""
Ranges = tuple[int, ...]
"""The lengths of ranges that are positive and negative in turn, the first one positive."""


class IncompleteError(Exception):
    """The bytes end within a value; more may follow."""


class ValueReader:
    """Reads values from bytes, beginning at an offset. Each method raises IncompleteError where bytes are missing."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes | bytearray, at: int = 0, end: int | None = None) -> None:
        self.data = data
        self.at = at
        self.end = len(data) if end is None else end

    def byte(self) -> int:
        """The next byte."""
        if self.at >= self.end:
            raise IncompleteError
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        """The next integer; a violation where it has more bytes than necessary, or more than 64 bits."""
        value = shift = 0
        while True:
            byte = self.byte()
            if byte == 0 and shift:
                raise violation(Rule.VARINT_NOT_SHORTEST, f"the last byte of an integer of {shift // 7 + 1} bytes is 0")
            value |= (byte & 127) << shift
            if value > U64_MAX or shift >= 7 * LONGEST_VARINT:
                raise violation(Rule.VARINT_TOO_LARGE, "an integer has more than 64 bits")
            if byte < 128:
                return value
            shift += 7

    def array(self) -> bytes:
        """The next byte array."""
        length = self.varint()
        return self.bytes(length)

    def bytes(self, length: int) -> bytes:
        """The next bytes."""
        self.skip(length)
        return bytes(self.data[self.at - length : self.at])

    def skip(self, length: int) -> None:
        """Go on behind the next bytes."""
        if self.at + length > self.end:
            raise IncompleteError
        self.at += length

    @property
    def left(self) -> int:
        """The number of bytes that are left."""
        return self.end - self.at


def varint(value: int) -> bytes:
    """An integer of 0 to 64 bits as bytes."""
    if value < 128:
        return value.to_bytes(1, "little")
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def array(data: bytes) -> bytes:
    """A byte array with its length in front."""
    return varint(len(data)) + data


def read_varints(data: bytes) -> tuple[int, ...]:
    """All integers of a byte array; a violation where it ends within one."""
    reader = ValueReader(data)
    found = []
    try:
        while reader.left:
            found.append(reader.varint())
    except IncompleteError:
        raise violation(Rule.ARRAY_OUT_OF_BOUNDS, "a byte array ends within an integer") from None
    return tuple(found)


def write_varints(values: Iterable[int]) -> bytes:
    """Integers back to back, as a byte array."""
    return array(b"".join(map(varint, values)))


def read_headers(data: bytes) -> Headers:
    """The headers within their outer byte array."""
    reader = ValueReader(data)
    parts = []
    try:
        while reader.left:
            parts.append(reader.array())
    except IncompleteError:
        raise violation(Rule.ARRAY_OUT_OF_BOUNDS, "the headers end within a key or a value") from None
    if len(parts) % 2:
        raise violation(Rule.HEADERS_ODD, f"the headers have {len(parts)} byte arrays, which are no pairs")
    return tuple((_key(parts[at]), parts[at + 1]) for at in range(0, len(parts), 2))


def _key(data: bytes) -> str:
    if not data:
        raise violation(Rule.HEADER_KEY_EMPTY, "the key of a header is empty")
    if not data.isascii():
        raise violation(Rule.HEADER_KEY_NOT_ASCII, f"the key {data[:80]!r} of a header is not ASCII")
    return data.decode("ascii")


def write_headers(headers: Headers) -> bytes:
    """Headers with their outer byte array. Keys must be ASCII, and not empty."""
    return array(b"".join(array(key.encode("ascii")) + array(value) for key, value in headers))


def read_ranges(data: bytes, *, may_be_empty: bool = False) -> Ranges:
    """The ranges within their byte array."""
    found = read_varints(data)
    if not found and not may_be_empty:
        raise violation(Rule.RANGES_EMPTY, "an ack says nothing")
    if 0 in found[1:] or found == (0,):
        raise violation(Rule.RANGE_ZERO, "a range has the length 0, and is not the first of several")
    return found
