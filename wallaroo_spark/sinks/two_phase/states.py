"""The two state tables of two-phase commit: a batch in the driver, and a transaction in a sink.

``BATCH[state][event]`` and ``TRANSACTION[state][event]`` are the next states. A missing key means that the event cannot
happen in the state. The diagrams in ``docs/sinks.md`` are drawn from these tables. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from wallaroo_spark.errors import SinkError


class BatchState(StrEnum):
    """The states of a batch in the driver that runs it."""

    NEW = "new"
    PREPARING = "preparing"
    VOTED = "voted"
    DECIDED = "decided"
    COMMITTED = "committed"
    FINISHED = "finished"
    ABORTING = "aborting"
    ABORTED = "aborted"


class BatchEvent(StrEnum):
    """The events of a batch."""

    FOUND_COMMITTED = "the log has its commit"
    FOUND_FINISHED = "the log has its end"
    RUN = "its partitions are run"
    ALL_YES = "every partition votes commit"
    ONE_NO = "one votes abort, or fails"
    LOGGED = "the commit is logged"
    OVERRULED = "the log has another driver's decision"
    TOLD = "every sink has committed"
    NOTED = "its end is logged"
    THROWN_AWAY = "every sink has aborted"


BATCH: Mapping[BatchState, Mapping[BatchEvent, BatchState]] = {
    BatchState.NEW: {
        BatchEvent.FOUND_FINISHED: BatchState.FINISHED,
        BatchEvent.FOUND_COMMITTED: BatchState.DECIDED,
        BatchEvent.RUN: BatchState.PREPARING,
    },
    BatchState.PREPARING: {BatchEvent.ALL_YES: BatchState.VOTED, BatchEvent.ONE_NO: BatchState.ABORTING},
    BatchState.VOTED: {BatchEvent.LOGGED: BatchState.DECIDED, BatchEvent.OVERRULED: BatchState.ABORTING},
    BatchState.DECIDED: {BatchEvent.TOLD: BatchState.COMMITTED},
    BatchState.COMMITTED: {BatchEvent.NOTED: BatchState.FINISHED},
    BatchState.ABORTING: {BatchEvent.THROWN_AWAY: BatchState.ABORTED},
    BatchState.FINISHED: {},
    BatchState.ABORTED: {},
}


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


class BatchRun:
    """One try at one batch: its state, driven by the table."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.state = BatchState.NEW

    def on(self, event: BatchEvent) -> BatchState:
        """Move to the next state and return it. Raises :class:`SinkError` for an event that is not in the table."""
        state = BATCH[self.state].get(event)
        if state is None:
            raise SinkError(
                f"batch {self.batch} is {self.state}, and '{event}' cannot happen then; this is a defect, report it",
                code="internal-error",
                batch=self.batch,
            )
        self.state = state
        return state
