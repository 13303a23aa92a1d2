"""Frames as bytes. A byte sequence that is refused names the rule. Source: ``docs/aqueduct/protocol.md#frames``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wallaroo_spark.aqueduct.frames.channels import ChannelId
from wallaroo_spark.aqueduct.frames.frames import (
    AckNackUnreliable,
    AckReliable,
    ChannelControl,
    ClosedChannelLost,
    CloseReceiver,
    ConnectionControl,
    FinishSender,
    Frame,
    MessageFrame,
    SentUnreliable,
    Version,
)
from wallaroo_spark.aqueduct.frames.values import (
    LONGEST_RANGES,
    LONGEST_VARINT,
    IncompleteError,
    ValueReader,
    array,
    read_headers,
    read_ranges,
    read_varints,
    varint,
    write_headers,
    write_varints,
)
from wallaroo_spark.aqueduct.violations import Rule, violation

MAGIC = bytes((80, 95, 166, 96, 15, 64, 142)) + b"AQUEDUCT"
"""What follows the type byte of a Version frame, in front of the version."""
LONGEST_VERSION = 255
"""The most bytes of a version; a longer one cannot be ours."""


class FrameLimits(NamedTuple):
    """What a peer's frame may have at most."""

    frame: int
    """Bytes of a frame."""
    headers: int
    """Bytes of the headers."""
    attachments: int
    """Attachments of a message."""


def decode(data: bytes | bytearray, at: int, limits: FrameLimits) -> tuple[Frame, int] | None:
    """The frame that begins at an offset, and the offset of its end; None where bytes are missing.

    What can be refused is refused before the frame is complete. Raises ProtocolViolation.
    """
    reader = ValueReader(data, at)
    try:
        kind = reader.byte()
        if kind not in _READERS:
            raise violation(Rule.UNKNOWN_FRAME, f"there is no frame of type {kind}")
        return _READERS[kind](reader, limits), reader.at
    except IncompleteError:
        return None


def encode(frame: Frame) -> bytes:
    """A frame as bytes."""
    return frame.TYPE.to_bytes(1, "little") + _BODIES[type(frame)](frame)


def _array(reader: ValueReader, longest: int, rule: Rule, what: str) -> bytes:
    """A byte array whose length is refused before its bytes have come."""
    length = reader.varint()
    if length > longest:
        raise violation(rule, f"{what} of {length} bytes are more than {longest}")
    return reader.bytes(length)


def _version(reader: ValueReader, limits: FrameLimits) -> Version:
    found = reader.bytes(min(len(MAGIC), reader.left))
    if not MAGIC.startswith(found):
        raise violation(Rule.WRONG_MAGIC, f"a Version frame goes on with {found!r} in place of {MAGIC!r}")
    if len(found) < len(MAGIC):
        raise IncompleteError
    return Version(_array(reader, LONGEST_VERSION, Rule.WRONG_VERSION, "a version"))


def _connection_control(reader: ValueReader, limits: FrameLimits) -> ConnectionControl:
    return ConnectionControl(read_headers(_array(reader, limits.headers, Rule.HEADERS_TOO_LONG, "headers")))


def _channel(reader: ValueReader) -> ChannelId:
    return ChannelId(reader.varint())


def _message(reader: ValueReader, limits: FrameLimits) -> MessageFrame:
    start = reader.at - 1
    channel, number = _channel(reader), reader.varint()
    size = reader.varint()
    if size > limits.frame - (reader.at - start):
        raise violation(Rule.FRAME_TOO_LONG, f"a message with a payload of {size} bytes is longer than {limits.frame}")
    # The payload is copied once, when the whole frame is there.
    payload = reader.at
    reader.skip(size)
    attached = _array(
        reader, LONGEST_VARINT * limits.attachments, Rule.TOO_MANY_ATTACHMENTS, "the attachments of a message"
    )
    attachments = tuple(map(ChannelId, read_varints(attached)))
    if len(attachments) > limits.attachments:
        raise violation(Rule.TOO_MANY_ATTACHMENTS, f"a message has {len(attachments)} of {limits.attachments}")
    if reader.at - start > limits.frame:
        raise violation(Rule.FRAME_TOO_LONG, f"a message of {reader.at - start} bytes is longer than {limits.frame}")
    return MessageFrame(channel, number, bytes(reader.data[payload : payload + size]), attachments)


def _ranges(reader: ValueReader) -> bytes:
    return _array(reader, LONGEST_RANGES, Rule.RANGES_TOO_LONG, "ranges")


_READERS: dict[int, Callable[[ValueReader, FrameLimits], Frame]] = {
    Version.TYPE: _version,
    ConnectionControl.TYPE: _connection_control,
    ChannelControl.TYPE: lambda reader, _: ChannelControl(_channel(reader)),
    MessageFrame.TYPE: _message,
    SentUnreliable.TYPE: lambda reader, _: SentUnreliable(reader.varint()),
    AckReliable.TYPE: lambda reader, _: AckReliable(read_ranges(_ranges(reader))),
    AckNackUnreliable.TYPE: lambda reader, _: AckNackUnreliable(read_ranges(_ranges(reader))),
    FinishSender.TYPE: lambda reader, _: FinishSender(reader.varint()),
    CloseReceiver.TYPE: lambda reader, _: CloseReceiver(read_ranges(_ranges(reader), may_be_empty=True)),
    ClosedChannelLost.TYPE: lambda reader, _: ClosedChannelLost(_channel(reader)),
}


def _message_body(frame: MessageFrame) -> bytes:
    return b"".join(
        (varint(frame.channel), varint(frame.number), array(frame.payload), write_varints(frame.attachments))
    )


_BODIES: dict[type[Frame], Callable[..., bytes]] = {
    Version: lambda frame: MAGIC + array(frame.version),
    ConnectionControl: lambda frame: write_headers(frame.headers),
    ChannelControl: lambda frame: varint(frame.channel),
    MessageFrame: _message_body,
    SentUnreliable: lambda frame: varint(frame.count),
    AckReliable: lambda frame: write_varints(frame.ranges),
    AckNackUnreliable: lambda frame: write_varints(frame.ranges),
    FinishSender: lambda frame: varint(frame.count),
    CloseReceiver: lambda frame: write_varints(frame.ranges),
    ClosedChannelLost: lambda frame: varint(frame.channel),
}
