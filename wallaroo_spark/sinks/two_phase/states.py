"""The states of a transaction in a sink.

``TRANSACTION[state][event]`` is the next state. A missing key means that the event cannot happen in the state. The
diagram in ``docs/sinks.md`` is drawn from this table. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class TransactionState(StrEnum):
    """The states of a transaction in the sink."""

    UNKNOWN = "unknown"
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    APPLIED = "applied"


class TransactionEvent(StrEnum):
    """The events of a transaction."""

    ROWS = "rows"
    PHASE1 = "PHASE1, and all is on the disk"
    REFUSED = "PHASE1 with a vote to abort"
    SUPERSEDED = "another session of that worker, or a crash"
    COMMIT = "PHASE2(commit)"
    ABORT = "PHASE2(abort)"
    APPENDED = "readers see it"


TRANSACTION: Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]] = {
    TransactionState.UNKNOWN: {
        TransactionEvent.ROWS: TransactionState.OPEN,
        TransactionEvent.PHASE1: TransactionState.PREPARED,
        TransactionEvent.ABORT: TransactionState.UNKNOWN,
    },
    TransactionState.OPEN: {
        TransactionEvent.ROWS: TransactionState.OPEN,
        TransactionEvent.PHASE1: TransactionState.PREPARED,
        TransactionEvent.REFUSED: TransactionState.UNKNOWN,
        TransactionEvent.SUPERSEDED: TransactionState.UNKNOWN,
    },
    TransactionState.PREPARED: {
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ABORT: TransactionState.UNKNOWN,
    },
    TransactionState.COMMITTED: {
        TransactionEvent.APPENDED: TransactionState.APPLIED,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
    },
    TransactionState.APPLIED: {TransactionEvent.COMMIT: TransactionState.APPLIED},
}
