"""The encoding of each frame as a table of its fields; ``revisions.py`` has the tables of the revisions.

A :class:`Codec` reads and writes the fields of a frame in the order of its attributes. MESSAGE follows the
:class:`MessageLayout` of its revision, which bulk decoding reads too. Source: ``docs/protocol.md#frame-bodies``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.faults import Fault, broken


class Field(NamedTuple):
    """A field of a frame's body on the wire."""

    read: Callable[[frames.Reader], Any]
    """Reads its value."""
    write: Callable[[frames.Writer, Any], object]
    """Writes a value."""


@dataclass(frozen=True)
class Codec:
    """One row of a table of frames, or of control messages."""

    tag: int
    """Tag on the wire."""
    frame: type[Any]
    fields: tuple[Field, ...]
    """The fields behind the tag, in the order of the frame's attributes. Further attributes are not sent."""

    def decode(self, read: frames.Reader) -> Any:
        """Decode the body behind the tag. Raises :class:`RemoteProtocolError` for malformed fields."""
        frame = self.frame(*(field.read(read) for field in self.fields))
        read.finish()
        return frame

    def encode(self, write: frames.Writer, frame: Any) -> None:
        """Encode the body behind the tag. Raises :class:`LocalProtocolError` for a value that does not fit."""
        for name, field in zip(self.frame.__match_args__, self.fields, strict=False):
            field.write(write, getattr(frame, name))


def frame_name(frame: type[Any]) -> str:
    """The name of a frame or control message in the protocol, for example ``NOTIFY_ACK``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", frame.__name__).upper()


def field(kind: str, name: str) -> Field:
    """A field that is read and written by the methods ``kind`` of reader and writer; ``name`` is for errors."""
    return Field(lambda read: getattr(read, kind)(name), lambda write, value: getattr(write, kind)(value, name))


def boolean(name: str, subject: str) -> Field:
    """A byte that must be 0 or 1; ``subject`` begins the error for another value."""

    def read(reader: frames.Reader) -> bool:
        value = reader.u8(name)
        if value > 1:
            raise broken(Fault.WRONG_STATE, f"{subject} is {value}; it is 0 or 1")
        return bool(value)

    return Field(read, lambda write, value: write.u8(int(value)))


STREAM_ID = field("u64", "the stream id")
REFERENCE = field("u64", "the reference")
STREAM_NAME = field("short_text", "the stream name")
CREDITS = field("u32", "the credits")
SUCCESS = boolean("the success byte", "NOTIFY_ACK success")


def _write_reason(write: frames.Writer, reason: str) -> None:
    # A reason that is too long is cut between characters.
    cut = reason.encode("utf-8", errors="replace")[:0xFFFF]
    write.short_text(cut.decode("utf-8", errors="ignore"), "the reason")


# Bytes that are not UTF-8 become replacement characters, because only people read the reason.
REASON = Field(lambda read: read.short_bytes("the reason").decode("utf-8", errors="replace"), _write_reason)


def _read_pairs(read: frames.Reader) -> tuple[tuple[int, int], ...]:
    pairs = []
    while read.left:
        pairs.append((read.u64("a stream id"), read.u64("a reference")))
    return tuple(pairs)


def _write_pairs(write: frames.Writer, pairs: tuple[tuple[int, int], ...]) -> None:
    for stream_id, ref in pairs:
        write.u64(stream_id, "the stream id").u64(ref, "the reference")


PAIRS = Field(_read_pairs, _write_pairs)
"""(stream, ref) up to the end of the frame."""


def _read_counted_pairs(read: frames.Reader) -> tuple[tuple[int, int], ...]:
    count = read.u32("the number of references")
    if count * 16 != read.left:
        raise broken(Fault.TRUNCATED_FRAME, f"ACK announces {count} references and has room for {read.left / 16:g}")
    return _read_pairs(read)


def _write_counted_pairs(write: frames.Writer, pairs: tuple[tuple[int, int], ...]) -> None:
    write.u32(len(pairs), "the number of references")
    _write_pairs(write, pairs)


COUNTED_PAIRS = Field(_read_counted_pairs, _write_counted_pairs)
"""The number of references, and (stream, ref) for each."""

POSITIONS = Field(
    lambda read: tuple(frames.StreamReference(*pair) for pair in _read_pairs(read)),
    lambda write, streams: _write_pairs(write, tuple((stream.stream_id, stream.ref) for stream in streams)),
)
"""The positions of streams in OK as :data:`PAIRS`; names are not sent."""


def _read_named_positions(read: frames.Reader) -> tuple[frames.StreamReference, ...]:
    streams = []
    while read.left:
        stream_id, name = read.u64("a stream id"), read.short_text("a stream name")
        streams.append(frames.StreamReference(stream_id, read.u64("a reference"), name))
    return tuple(streams)


def _write_named_positions(write: frames.Writer, streams: tuple[frames.StreamReference, ...]) -> None:
    for stream in streams:
        write.u64(stream.stream_id, "the stream id").short_text(stream.name, "the stream name")
        write.u64(stream.ref, "the reference")


NAMED_POSITIONS = Field(_read_named_positions, _write_named_positions)
"""The positions of streams in OK: (stream, name, ref) up to the end of the frame."""


def _write_last_id(write: frames.Writer, message_id: int | None) -> None:
    if message_id is not None:
        write.u64(message_id, "the message id")


LAST_ID = Field(lambda read: read.u64("the message id") if read.left else None, _write_last_id)
"""The message id of EOS_MESSAGE, which may be missing, because peers send both forms."""


def _read_address(read: frames.Reader) -> str:
    if not read.left:
        return ""
    raw = read.take(read.u32("the length of the address"), "the address")
    read.finish()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise broken(Fault.INVALID_TEXT, "the address in a RESTART frame is not UTF-8") from None


def _write_address(write: frames.Writer, address: str) -> None:
    raw = address.encode("utf-8")
    write.u32(len(raw), "the length of the address").raw(raw)


ADDRESS = Field(_read_address, _write_address)
"""The address of a v3 RESTART: a u32 length and ``host:port``. A peer may leave out both."""


@dataclass(frozen=True)
class MessageLayout:
    """The layout of a MESSAGE body."""

    known_flags: frames.Flags | None
    """The valid flags; None where there is no flags field.

    Without a flags field, event time and key are always present, and 0 and the empty key mean that there is none.
    """
    ephemeral_has_id: bool
    """Whether an EPHEMERAL message has an id field."""

    def has_id(self, flags: int) -> bool:
        """Whether a message with these flags has an id field."""
        return self.ephemeral_has_id or not flags & frames.Flags.EPHEMERAL


@dataclass(frozen=True)
class MessageCodec:
    """The row of MESSAGE."""

    tag: int
    """Tag on the wire."""
    layout: MessageLayout
    frame: type[Any] = frames.Message

    def decode(self, read: frames.Reader) -> frames.Message:
        """Decode a body. Without flags, an event time of 0 and an empty key are returned as such."""
        known = self.layout.known_flags
        flags = frames.Flags.NONE if known is None else _checked_flags(read.u16("the flags"), known)
        stream_id = read.u64("the stream id")
        message_id = read.u64("the message id") if self.layout.has_id(flags) else None
        if known is None:
            event_time, key = read.i64("the event time"), read.short_bytes("the key")
            return frames.Message(stream_id, message_id, read.rest(), flags, event_time, key)
        time = read.u64("the event time") if flags & frames.Flags.EVENT_TIME else None
        name = read.short_bytes("the key") if flags & frames.Flags.KEY else None
        return frames.Message(stream_id, message_id, _payload(read, flags), flags, time, name)

    def encode(self, write: frames.Writer, frame: Any) -> None:
        """Encode a body. Without flags, a missing event time is sent as 0, a missing key as empty.

        An EPHEMERAL message whose layout has an id field carries its id, or 0 without one.
        """
        known = self.layout.known_flags
        if known is None:
            if frame.flags & ~(frames.Flags.EVENT_TIME | frames.Flags.KEY):
                raise LocalProtocolError(
                    f"v3 messages have no flags, so {frame.flags!r} cannot be sent; use a draft revision",
                    code="not-in-revision",
                )
        elif frame.key is not None and not known & frames.Flags.KEY:
            raise LocalProtocolError(
                "draft-le messages have no key; leave it out, or use draft-be or v3", code="not-in-revision"
            )
        else:
            write.u16(_flags_of(frame), "the flags")
        write.u64(frame.stream_id, "the stream id")
        if self.layout.has_id(frame.flags):
            write.u64(_message_id(frame), "the message id")
        if known is None:
            write.i64(frame.event_time or 0, "the event time")
        elif frame.event_time is not None:
            write.u64(frame.event_time, "the event time")
        if known is None or frame.key is not None:
            write.short_bytes(frame.key or b"", "the key")
        write.raw(frame.payload or b"")


def _checked_flags(bits: int, known: frames.Flags) -> frames.Flags:
    """Return the flags. Raises :class:`RemoteProtocolError` when a reserved flag is set."""
    if bits & ~int(known):
        raise broken(Fault.RESERVED_FLAG, f"MESSAGE flags are {bits:#06x}; only {int(known):#06x} may be set")
    return frames.Flags(bits)


def _payload(read: frames.Reader, flags: frames.Flags) -> bytes | None:
    if not flags & frames.Flags.BOUNDARY:
        return read.rest()
    if read.left:
        reason = (
            f"a BOUNDARY message has {read.left} bytes behind its fields, where no payload may be; send a payload in a "
            "message without BOUNDARY, and check that its fields are flags, stream id, message id (in draft-be not "
            "with EPHEMERAL) and, each where its flag is set, event time and key"
        )
        raise broken(Fault.BOUNDARY_PAYLOAD, reason)
    return None


def _flags_of(frame: frames.Message) -> int:
    flags = frame.flags & ~(frames.Flags.EVENT_TIME | frames.Flags.KEY)
    if frame.event_time is not None:
        flags |= frames.Flags.EVENT_TIME
    if frame.key is not None:
        flags |= frames.Flags.KEY
    if flags & frames.Flags.BOUNDARY and frame.payload:
        raise LocalProtocolError(
            f"a BOUNDARY message has no payload, and this one has {len(frame.payload)} bytes", code="boundary-payload"
        )
    return int(flags)


def _message_id(frame: frames.Message) -> int:
    if frame.message_id is None:
        if frame.flags & frames.Flags.EPHEMERAL:
            return 0
        raise LocalProtocolError(
            f"a message of stream {frame.stream_id} has no id; only an EPHEMERAL message may have none",
            code="not-in-revision",
        )
    return frame.message_id
