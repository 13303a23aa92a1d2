"""Session and stream states as tables. A missing key is a protocol error.

``SESSION[sender][state][frame]`` is the session's next state, ``*_STREAMS[state][event]`` the stream's. The diagrams in
the documentation are drawn from these tables. Source: ``docs/protocol.md#session-states`` and
``docs/protocol.md#stream-states``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from wallaroo_spark.protocol import frames


class Role(StrEnum):
    """The sides of sessions: of a connector with a worker, and of a worker with a connector sink."""

    CONNECTOR = "connector"
    WORKER = "worker"
    SINK = "sink"


class SessionState(StrEnum):
    """The state of a session."""

    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    RESTARTING = "restarting"
    ERROR = "error"
    DISCONNECTED = "disconnected"


class StreamState(StrEnum):
    """The state of a stream in a session."""

    START = "start"
    NOTIFY_SENT = "notify-sent"
    OPEN = "open"
    CLOSED = "closed"
    RESET = "reset"
    TERMINATED = "terminated"


class StreamEvent(StrEnum):
    """An event that changes a stream's state. EOS stands for both the flag and the frame."""

    NOTIFY = "NOTIFY"
    ACCEPTED = "NOTIFY_ACK(1)"
    REFUSED = "NOTIFY_ACK(0)"
    MESSAGE = "MESSAGE"
    EOS = "EOS"
    NACK = "NACK"
    RESTART = "RESTART"


SessionTable = Mapping[Role, Mapping[SessionState, Mapping[type[frames.Frame], SessionState]]]
"""Sender → state → frame → next state."""
StreamTable = Mapping[StreamState, Mapping[StreamEvent, StreamState]]
"""State → event → next state."""

SESSION: SessionTable = {
    Role.CONNECTOR: {
        SessionState.CONNECTED: {frames.Hello: SessionState.HANDSHAKE, frames.Error: SessionState.ERROR},
        SessionState.HANDSHAKE: {frames.Error: SessionState.ERROR},
        SessionState.STREAMING: {
            frames.Notify: SessionState.STREAMING,
            frames.Message: SessionState.STREAMING,
            frames.EosMessage: SessionState.STREAMING,
            frames.Error: SessionState.ERROR,
        },
    },
    Role.WORKER: {
        SessionState.CONNECTED: {frames.Error: SessionState.ERROR},
        SessionState.HANDSHAKE: {
            frames.Ok: SessionState.STREAMING,
            frames.Restart: SessionState.RESTARTING,
            frames.Error: SessionState.ERROR,
        },
        SessionState.STREAMING: {
            frames.NotifyAck: SessionState.STREAMING,
            frames.Ack: SessionState.STREAMING,
            frames.Nack: SessionState.STREAMING,
            frames.Restart: SessionState.RESTARTING,
            frames.Error: SessionState.ERROR,
        },
    },
}

DRAFT_LE_STREAMS: StreamTable = {
    StreamState.START: {StreamEvent.NOTIFY: StreamState.OPEN},
    StreamState.OPEN: {
        StreamEvent.MESSAGE: StreamState.OPEN,
        StreamEvent.EOS: StreamState.CLOSED,
        StreamEvent.NACK: StreamState.RESET,
    },
    StreamState.CLOSED: {StreamEvent.NOTIFY: StreamState.OPEN, StreamEvent.NACK: StreamState.RESET},
    StreamState.RESET: {
        StreamEvent.MESSAGE: StreamState.RESET,
        StreamEvent.EOS: StreamState.RESET,
        StreamEvent.NACK: StreamState.RESET,
        StreamEvent.NOTIFY: StreamState.OPEN,
    },
}

DRAFT_BE_STREAMS: StreamTable = {
    StreamState.START: {StreamEvent.NOTIFY: StreamState.OPEN},
    StreamState.OPEN: {
        StreamEvent.MESSAGE: StreamState.OPEN,
        StreamEvent.EOS: StreamState.CLOSED,
        StreamEvent.RESTART: StreamState.TERMINATED,
    },
    StreamState.CLOSED: {StreamEvent.NOTIFY: StreamState.OPEN, StreamEvent.RESTART: StreamState.TERMINATED},
    StreamState.TERMINATED: {},
}

V3_STREAMS: StreamTable = {
    StreamState.START: {StreamEvent.NOTIFY: StreamState.NOTIFY_SENT},
    StreamState.NOTIFY_SENT: {
        StreamEvent.ACCEPTED: StreamState.OPEN,
        StreamEvent.REFUSED: StreamState.CLOSED,
        StreamEvent.RESTART: StreamState.TERMINATED,
    },
    StreamState.OPEN: {
        StreamEvent.MESSAGE: StreamState.OPEN,
        StreamEvent.EOS: StreamState.CLOSED,
        StreamEvent.NOTIFY: StreamState.OPEN,
        StreamEvent.REFUSED: StreamState.OPEN,
        StreamEvent.RESTART: StreamState.TERMINATED,
    },
    StreamState.CLOSED: {StreamEvent.NOTIFY: StreamState.NOTIFY_SENT, StreamEvent.RESTART: StreamState.TERMINATED},
    StreamState.TERMINATED: {},
}
