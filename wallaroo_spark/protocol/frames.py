"""Frames as values, independent of how a revision writes them.

Integers are unsigned 64-bit unless said otherwise. Source: ``docs/protocol.md#frame-bodies``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

U64_MAX = 2**64 - 1
NOTHING_PROCESSED = U64_MAX
"""The ``ref`` of a v3 NOTIFY_ACK for a stream of which nothing is committed."""


class Flags(IntFlag):
    """Bits of a MESSAGE (the drafts; v3 has no flags)."""

    NONE = 0
    EPHEMERAL = 1
    BOUNDARY = 2
    EOS = 4
    UNSTABLE_REFERENCE = 8
    EVENT_TIME = 16
    KEY = 32


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connector: who it is. ``cookie`` is never shown."""

    version: str
    cookie: bytes
    program: str
    instance: str

    def __repr__(self) -> str:
        return f"Hello(version={self.version!r}, program={self.program!r}, instance={self.instance!r})"


@dataclass(frozen=True, slots=True)
class StreamReference:
    """Where a stream stands: everything up to and including message id ``ref`` is committed."""

    stream_id: int
    ref: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ok:
    """The worker's yes to HELLO: credits, and in the drafts the references of the instance's streams."""

    credits: int
    streams: tuple[StreamReference, ...] = ()


@dataclass(frozen=True, slots=True)
class Error:
    """The end of the session, with a reason for an operator; either side sends it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Notify:
    """Opens a stream; ``ref`` is the reference it resumes from, 0 when it starts at its beginning."""

    stream_id: int
    name: str
    ref: int = 0


@dataclass(frozen=True, slots=True)
class NotifyAck:
    """v3: whether the stream is open, and its last committed reference."""

    success: bool
    stream_id: int
    ref: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a stream. ``payload`` is None for a boundary, ``message_id`` for a draft-be ephemeral."""

    stream_id: int
    message_id: int | None
    payload: bytes | None
    flags: Flags = Flags.NONE
    event_time: int | None = None
    key: bytes | None = None

    def __repr__(self) -> str:
        payload = "None" if self.payload is None else shorten(self.payload)
        return f"Message(stream_id={self.stream_id}, message_id={self.message_id}, {self.flags!r}, payload={payload})"


@dataclass(frozen=True, slots=True)
class EosMessage:
    """v3: the stream ends here."""

    stream_id: int
    message_id: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """Credits to add, and references up to which streams are committed; either may be empty."""

    credits: int
    refs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Nack:
    """draft-le: go back to ``ref`` on this stream and notify it again."""

    credits: int
    stream_id: int
    ref: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Close and connect again, at ``address`` (``host:port``, v3 only) where one is given."""

    address: str = ""


Frame = Hello | Ok | Error | Notify | NotifyAck | Message | EosMessage | Ack | Nack | Restart


def shorten(data: bytes, most: int = 24) -> str:
    """Bytes as a log line can show them: their beginning and how many there are."""
    return repr(data) if len(data) <= most else f"{data[:most]!r}… ({len(data)} bytes)"
