"""Frames as values, independent of their encoding in a revision.

Integers are unsigned 64-bit unless stated otherwise. Source: ``docs/protocol.md#frame-bodies``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

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
    """Id of the stream."""
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
    """The reason as a sentence, which no program parses except for those in :mod:`.reasons`."""


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
    """Id of the stream."""
    ref: int
    """Id of the last committed message, or :data:`NOTHING_PROCESSED`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream."""

    stream_id: int
    """Id of the stream."""
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
    """Id of the stream."""
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
    """Id of the stream."""
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
