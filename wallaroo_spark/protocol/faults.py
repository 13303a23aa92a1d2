"""The ways in which a peer can violate the protocol, by the names that logs and metrics use.

Source: ``docs/protocol.md#framing``, ``docs/protocol.md#frame-bodies``, ``docs/protocol.md#session-states`` and
``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from wallaroo_spark.errors import RemoteProtocolError


class Fault(StrEnum):
    """The kinds of protocol violation. Each is a code that ``docs/errors.md`` explains."""

    NOT_THIS_PROTOCOL = "not-this-protocol"
    FRAME_TOO_LONG = "frame-too-long"
    EMPTY_FRAME = "empty-frame"
    UNKNOWN_TAG = "unknown-tag"
    TRUNCATED_FRAME = "truncated-frame"
    OVERLONG_FRAME = "overlong-frame"
    INVALID_TEXT = "invalid-text"
    WRONG_VERSION = "wrong-version"
    WRONG_COOKIE = "wrong-cookie"
    WRONG_PROGRAM = "wrong-program"
    BAD_INSTANCE = "bad-instance"
    WRONG_CERTIFICATE = "wrong-certificate"
    WRONG_STATE = "wrong-state"
    WRONG_SIDE = "wrong-side"
    RESERVED_FLAG = "reserved-flag"
    BOUNDARY_PAYLOAD = "boundary-payload"
    STREAM_NOT_OPEN = "stream-not-open"
    STREAM_ALREADY_OPEN = "stream-already-open"
    TOO_MANY_STREAMS = "too-many-streams"
    NAME_TOO_LONG = "name-too-long"
    NO_CREDIT = "no-credit"
    MIXED_EPHEMERAL = "mixed-ephemeral"
    IDS_NOT_INCREASING = "ids-not-increasing"
    REPLAY_DIFFERS = "replay-differs"
    HANDSHAKE_TIMEOUT = "handshake-timeout"
    PEER_NEVER_READS = "peer-never-reads"
    SUPERSEDED = "superseded"
    WRONG_OFFSET = "wrong-offset"
    WRONG_PHASE = "wrong-phase"
    WORKER_FULL = "worker-full"


def broken(fault: Fault, reason: str, **fields: Any) -> RemoteProtocolError:
    """The error for a peer's protocol violation. ``reason`` is short enough for an ERROR frame, which has no code."""
    return RemoteProtocolError(reason, code=str(fault), fault=fault, **fields)
