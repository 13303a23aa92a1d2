"""The rules that a peer can violate, and the codes with which a violation ends the connection.

Source: ``docs/aqueduct/protocol.md#violations``.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from wallaroo_spark.aqueduct.errors import ProtocolViolation


class CloseCode(IntEnum):
    """The application's error codes with which a connection is closed."""

    ORDERLY = 0
    PROTOCOL = 1
    VERSION = 2
    LIMITS = 3


class Rule(StrEnum):
    """The names of the rules, which the reason of a closed connection begins with."""

    VARINT_NOT_SHORTEST = "varint-not-shortest"
    VARINT_TOO_LARGE = "varint-too-large"
    UNKNOWN_FRAME = "unknown-frame"
    WRONG_MAGIC = "wrong-magic"
    ARRAY_OUT_OF_BOUNDS = "array-out-of-bounds"
    HEADERS_ODD = "headers-odd"
    HEADER_KEY_EMPTY = "header-key-empty"
    HEADER_KEY_NOT_ASCII = "header-key-not-ascii"
    RANGE_ZERO = "range-zero"
    RANGES_EMPTY = "ranges-empty"
    TRUNCATED = "truncated"
    NO_FRAME = "no-frame"
    VERSION_NOT_FIRST = "version-not-first"
    HEADERS_MISPLACED = "headers-misplaced"
    HEADERS_TWICE = "headers-twice"
    CHANNEL_CONTROL_MISPLACED = "channel-control-misplaced"
    MESSAGE_MISPLACED = "message-misplaced"
    SENT_UNRELIABLE_MISPLACED = "sent-unreliable-misplaced"
    ACK_RELIABLE_MISPLACED = "ack-reliable-misplaced"
    ACK_NACK_UNRELIABLE_MISPLACED = "ack-nack-unreliable-misplaced"
    FINISH_SENDER_MISPLACED = "finish-sender-misplaced"
    CLOSE_RECEIVER_MISPLACED = "close-receiver-misplaced"
    CLOSED_CHANNEL_LOST_MISPLACED = "closed-channel-lost-misplaced"
    END_MISPLACED = "end-misplaced"
    CONTROL_STREAM_ENDED = "control-stream-ended"
    WRONG_CREATOR = "wrong-creator"
    WRONG_DIRECTION = "wrong-direction"
    ATTACHED_TWICE = "attached-twice"
    NUMBER_TWICE = "number-twice"
    NUMBER_NOT_SENT = "number-not-sent"
    ACKED_TWICE = "acked-twice"
    ACK_NOT_SENT = "ack-not-sent"
    NACK_OF_ACKED = "nack-of-acked"
    ONESHOT = "oneshot"
    NO_DATAGRAMS = "no-datagrams"
    WRONG_VERSION = "wrong-version"
    FRAME_TOO_LONG = "frame-too-long"
    HEADERS_TOO_LONG = "headers-too-long"
    RANGES_TOO_LONG = "ranges-too-long"
    TOO_MANY_ATTACHMENTS = "too-many-attachments"
    TOO_MANY_CHANNELS = "too-many-channels"
    TOO_MANY_GAPS = "too-many-gaps"
    WINDOW_EXCEEDED = "window-exceeded"
    TOO_MUCH_UNFINISHED = "too-much-unfinished"
    HANDSHAKE_TIMEOUT = "handshake-timeout"

    @property
    def close_code(self) -> CloseCode:
        """The code with which a violation of the rule ends the connection."""
        if self is Rule.WRONG_VERSION:
            return CloseCode.VERSION
        return CloseCode.LIMITS if self in LIMITS else CloseCode.PROTOCOL


LIMITS = frozenset(
    {
        Rule.FRAME_TOO_LONG,
        Rule.HEADERS_TOO_LONG,
        Rule.RANGES_TOO_LONG,
        Rule.TOO_MANY_ATTACHMENTS,
        Rule.TOO_MANY_CHANNELS,
        Rule.TOO_MANY_GAPS,
        Rule.WINDOW_EXCEEDED,
        Rule.TOO_MUCH_UNFINISHED,
        Rule.HANDSHAKE_TIMEOUT,
    }
)
"""The rules that are limits of this side."""


def violation(rule: Rule, text: str) -> ProtocolViolation:
    """The error for a peer that violates a rule. ``text`` names the thing, its value and the limit."""
    return ProtocolViolation(f"{rule}: {text}", rule=rule)
