"""The ways in which a peer can violate the protocol, and the reasons of ERROR that have a meaning for the connector.

The drafts have no frame that redirects a connector to another worker, so the worker uses the reason of an ERROR. The
SDK acts on these reasons; other connectors show them to their operators. Source: ``docs/protocol.md#framing``,
``docs/protocol.md#frame-bodies``, ``docs/protocol.md#session-states`` and ``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

import re
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
    WRONG_CHANNEL = "wrong-channel"
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


_REDIRECT = re.compile(r"redirect to (\S+): ")
_LATER = "try again later: "
_SUPERSEDED = ", takes its place"


def redirect(address: str, why: str) -> str:
    """The reason that redirects a connector to the worker at ``address`` (``host:port``)."""
    return f"redirect to {address}: {why}"


def redirect_address(reason: str) -> str | None:
    """The ``host:port`` in a redirecting reason; None for other reasons."""
    match = _REDIRECT.match(reason)
    return match[1] if match else None


def superseded(instance: str, peer: str) -> str:
    """The reason that ends a session because its instance has opened a newer one. The connector must not reconnect."""
    return f"a newer session of instance {instance!r}, from {peer}{_SUPERSEDED}"


def is_superseded(reason: str) -> bool:
    """Whether a reason says that the instance has opened a newer session."""
    return reason.endswith(_SUPERSEDED)


def later(why: str) -> str:
    """The reason that asks a connector to reconnect with its usual back-off."""
    return _LATER + why


def is_later(reason: str) -> bool:
    """Whether a reason asks the connector to reconnect."""
    return reason.startswith(_LATER)
