"""Frames as values, independent of their encoding in a revision, and readers and writers of the primitive types.

Integers are unsigned 64-bit unless stated otherwise. Source: ``docs/protocol.md#framing`` and
``docs/protocol.md#frame-bodies``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from typing import NamedTuple

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol.faults import Fault, broken

U64_MAX = 2**64 - 1
NOTHING_PROCESSED = U64_MAX
"""``ref`` of a v3 NOTIFY_ACK for a stream without a committed message."""


class Flags(IntFlag):
    """Flag bits of a MESSAGE in the drafts. v3 has no flags."""

    NONE = 0
    EPHEMERAL = 1
    BOUNDARY = 2
    EOS = 4
    UNSTABLE_REFERENCE = 8
    EVENT_TIME = 16
    KEY = 32


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connector. ``repr`` omits the cookie."""

    version: str
    """Protocol version; the worker compares it with its own."""
    cookie: bytes
    """Cookie that authenticates the connector."""
    program: str
    """Name of the receiver's program."""
    instance: str
    """Name of the connector instance, the owner of its streams."""

    def __repr__(self) -> str:
        return f"Hello(version={self.version!r}, program={self.program!r}, instance={self.instance!r})"


@dataclass(frozen=True, slots=True)
class StreamReference:
    """The committed position of a stream: every message up to and including ``ref`` is committed."""

    stream_id: int
    ref: int
    """Id of the last committed message."""
    name: str = ""
    """Name of the stream; empty where the revision does not send it."""


@dataclass(frozen=True, slots=True)
class Ok:
    """The worker accepts HELLO."""

    credits: int
    """The first credits; u32."""
    streams: tuple[StreamReference, ...] = ()
    """Committed positions of the instance's streams, in the drafts."""


@dataclass(frozen=True, slots=True)
class Error:
    """Ends the session, with a reason for an operator. Either side sends it."""

    reason: str
    """The reason as a sentence, which no program parses except for those in :mod:`.faults`."""


@dataclass(frozen=True, slots=True)
class Notify:
    """Opens a stream."""

    stream_id: int
    """Id of the stream, chosen by the connector."""
    name: str
    """Name of the stream."""
    ref: int = 0
    """Point of reference from which the stream resumes; 0 for the beginning."""


@dataclass(frozen=True, slots=True)
class NotifyAck:
    """v3: the answer to NOTIFY."""

    success: bool
    """Whether the stream is open now."""
    stream_id: int
    ref: int
    """Id of the last committed message, or :data:`NOTHING_PROCESSED`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream."""

    stream_id: int
    message_id: int | None
    """Id of the message; None for an ephemeral message in draft-be."""
    payload: bytes | None
    """The payload; None for a BOUNDARY message."""
    flags: Flags = Flags.NONE
    """Flag bits; always ``NONE`` in v3."""
    event_time: int | None = None
    """Event time in the unit that the receiver is configured with; None without one. Signed in v3."""
    key: bytes | None = None
    """Key; None without one."""

    def __repr__(self) -> str:
        payload = "None" if self.payload is None else shorten(self.payload)
        return f"Message(stream_id={self.stream_id}, message_id={self.message_id}, {self.flags!r}, payload={payload})"


@dataclass(frozen=True, slots=True)
class EosMessage:
    """v3: ends a stream."""

    stream_id: int
    message_id: int | None = None
    """Id of the last message; None in the short form of the frame."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Grants credits, and acknowledges streams; either part may be empty."""

    credits: int
    """Credits to add; u32."""
    refs: tuple[tuple[int, int], ...] = ()
    """Pairs (stream id, id of the last committed message)."""


@dataclass(frozen=True, slots=True)
class Nack:
    """draft-le: rewind a stream. The connector sends NOTIFY again, then the messages behind ``ref``."""

    credits: int
    """Credits to add; u32."""
    stream_id: int
    ref: int
    """Id of the last committed message; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The connector shall close the connection and connect again."""

    address: str = ""
    """``host:port`` of the worker to connect to (v3 only); empty: the connector chooses."""


Frame = Hello | Ok | Error | Notify | NotifyAck | Message | EosMessage | Ack | Nack | Restart


def shorten(data: bytes, most: int = 24) -> str:
    """Format bytes for a log line: the first ``most`` bytes and the total number."""
    return repr(data) if len(data) <= most else f"{data[:most]!r}… ({len(data)} bytes)"


class Structs(NamedTuple):
    """The integer formats of one byte order."""

    u16: struct.Struct
    """Unsigned, 2 bytes."""
    u32: struct.Struct
    """Unsigned, 4 bytes."""
    u64: struct.Struct
    """Unsigned, 8 bytes."""
    i64: struct.Struct
    """Signed, 8 bytes."""
    u32_u8: struct.Struct
    """A frame's length and tag."""


@cache
def structs(byte_order: str) -> Structs:
    """The formats of ``"<"`` (little-endian) or ``">"`` (big-endian)."""
    return Structs(*(struct.Struct(byte_order + code) for code in ("H", "I", "Q", "q", "IB")))


class Reader:
    """Reads the fields of a frame's body in order. Raises :class:`RemoteProtocolError` where the body is too short."""

    def __init__(self, body: bytes | memoryview, byte_order: str, frame: str) -> None:
        self._body = bytes(body)
        self.at = 0
        """Offset of the next byte to read; after an error, where the field that could not be read begins."""
        self._formats = structs(byte_order)
        self._frame = frame

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._body) - self.at

    def take(self, count: int, name: str) -> bytes:
        """Read ``count`` bytes."""
        if count > self.left:
            raise broken(
                Fault.TRUNCATED_FRAME, f"{self._frame} frame ends within {name}: {self.left} of {count} bytes are there"
            )
        piece = self._body[self.at : self.at + count]
        self.at += count
        return piece

    def _integer(self, form: struct.Struct, name: str) -> int:
        value: int = form.unpack(self.take(form.size, name))[0]
        return value

    def u8(self, name: str) -> int:
        """An unsigned byte."""
        return self.take(1, name)[0]

    def u16(self, name: str) -> int:
        """An unsigned 16-bit integer."""
        return self._integer(self._formats.u16, name)

    def u32(self, name: str) -> int:
        """An unsigned 32-bit integer."""
        return self._integer(self._formats.u32, name)

    def u64(self, name: str) -> int:
        """An unsigned 64-bit integer."""
        return self._integer(self._formats.u64, name)

    def i64(self, name: str) -> int:
        """A signed 64-bit integer."""
        return self._integer(self._formats.i64, name)

    def short_bytes(self, name: str) -> bytes:
        """Read a u16 byte count and that many bytes."""
        return self.take(self.u16(f"the length of {name}"), name)

    def short_text(self, name: str) -> str:
        """Read ``short_bytes`` that must be UTF-8."""
        raw = self.short_bytes(name)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise broken(
                Fault.INVALID_TEXT, f"{name} in a {self._frame} frame is not UTF-8 at byte {error.start}"
            ) from None

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(self.left, "the rest")

    def finish(self) -> None:
        """Check that the body ends here."""
        if self.left:
            raise broken(Fault.OVERLONG_FRAME, f"{self._frame} frame has {self.left} bytes more than its fields")


class Writer:
    """Builds a frame's body. Raises :class:`LocalProtocolError` for a value that does not fit its field."""

    def __init__(self, byte_order: str) -> None:
        self._parts: list[bytes] = []
        self._formats = structs(byte_order)

    def _integer(self, form: struct.Struct, value: int, name: str) -> Writer:
        try:
            self._parts.append(form.pack(value))
        except struct.error:
            raise LocalProtocolError(
                f"{name} is {value}, which does not fit {form.size} bytes", code="value-does-not-fit"
            ) from None
        return self

    def u8(self, value: int) -> Writer:
        """An unsigned byte."""
        self._parts.append(bytes((value,)))
        return self

    def u16(self, value: int, name: str) -> Writer:
        """An unsigned 16-bit integer."""
        return self._integer(self._formats.u16, value, name)

    def u32(self, value: int, name: str) -> Writer:
        """An unsigned 32-bit integer."""
        return self._integer(self._formats.u32, value, name)

    def u64(self, value: int, name: str) -> Writer:
        """An unsigned 64-bit integer."""
        return self._integer(self._formats.u64, value, name)

    def i64(self, value: int, name: str) -> Writer:
        """A signed 64-bit integer."""
        return self._integer(self._formats.i64, value, name)

    def raw(self, data: bytes) -> Writer:
        """Append bytes without a length."""
        self._parts.append(data)
        return self

    def short_bytes(self, data: bytes, name: str) -> Writer:
        """Append a u16 byte count and the bytes, at most 65,535."""
        if len(data) > 0xFFFF:
            raise LocalProtocolError(
                f"{name} has {len(data)} bytes; at most 65535 fit a frame", code="value-does-not-fit"
            )
        return self.u16(len(data), name).raw(data)

    def short_text(self, text: str, name: str) -> Writer:
        """Append ``short_bytes`` of the text in UTF-8."""
        try:
            return self.short_bytes(text.encode("utf-8"), name)
        except UnicodeEncodeError as error:
            raise LocalProtocolError(
                f"{name} cannot be written as UTF-8 from character {error.start} on", code="invalid-text"
            ) from None

    def done(self) -> bytes:
        """Return the body."""
        return b"".join(self._parts)
