"""The states of a session between a worker and a connector sink, as tables; a missing key is a protocol error.

Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from wallaroo_spark.protocol.frames import Ack, EosMessage, Error, Hello, Message, Notify, NotifyAck, Ok, Restart
from wallaroo_spark.protocol.sessions.states import SessionState


class Side(StrEnum):
    """The sides of a session."""

    WORKER = "worker"
    SINK = "sink"


class Phase(StrEnum):
    """The phase of a session's transaction."""

    WRITING = "writing"
    VOTING = "voting"
    VOTED = "voted"


class PhaseEvent(StrEnum):
    """An event that changes the phase."""

    ROWS = "rows"
    PHASE1 = "PHASE1"
    REPLY = "REPLY"
    PHASE2 = "PHASE2"


SINK_SESSION: Mapping[Side, Mapping[SessionState, Mapping[type[Any], SessionState]]] = {
    Side.WORKER: {
        SessionState.CONNECTED: {Hello: SessionState.HANDSHAKE, Error: SessionState.ERROR},
        SessionState.HANDSHAKE: {Error: SessionState.ERROR},
        SessionState.STREAMING: {
            Notify: SessionState.STREAMING,
            Message: SessionState.STREAMING,
            EosMessage: SessionState.STREAMING,
            Error: SessionState.ERROR,
        },
    },
    Side.SINK: {
        SessionState.CONNECTED: {Error: SessionState.ERROR},
        SessionState.HANDSHAKE: {Ok: SessionState.STREAMING, Error: SessionState.ERROR},
        SessionState.STREAMING: {
            NotifyAck: SessionState.STREAMING,
            Message: SessionState.STREAMING,
            Ack: SessionState.STREAMING,
            Restart: SessionState.ERROR,
            Error: SessionState.ERROR,
        },
    },
}
"""``[sender][state][frame]`` is the next state; a missing key is a protocol error."""

PHASES: Mapping[Phase, Mapping[PhaseEvent, Phase]] = {
    Phase.WRITING: {PhaseEvent.ROWS: Phase.WRITING, PhaseEvent.PHASE1: Phase.VOTING},
    Phase.VOTING: {PhaseEvent.REPLY: Phase.VOTED},
    Phase.VOTED: {PhaseEvent.PHASE2: Phase.WRITING},
}
