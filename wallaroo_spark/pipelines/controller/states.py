"""The states of deliveries, transactions and statements as tables: ``TABLE[state][event]`` is the next state.

A missing key means that the event has no effect in that state; a client's message is then dropped with a warning.
Source: ``docs/pipelines/design.md#states``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from wallaroo_spark.errors import PipelineError

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class DeliveryState(StrEnum):
    """The states of a delivery, of a group or of a stage."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    DELAYED = "delayed"
    COMMITTING = "committing"
    FAILED = "failed"
    DONE = "done"


class DeliveryEvent(StrEnum):
    """The events of a delivery."""

    MEMBER_CHOSEN = "a member is chosen"
    ACKED = "ack"
    ACKED_EARLY = "ack, before all statements are applied"
    NACKED = "nack, or the member leaves"
    NACKED_WITH_DELAY = "nack with a delay"
    DUE = "the delay is over"
    TRANSACTION_COMMITTED = "its transaction commits"
    TRANSACTION_REJECTED = "its transaction is rejected"
    TRANSACTION_REJECTED_WITH_DELAY = "its transaction is rejected, with a delay"
    GIVEN_UP = "an event of a group was delivered as often as permitted"
    SET_ASIDE = "its dead letter is carried"


DELIVERY: Mapping[DeliveryState, Mapping[DeliveryEvent, DeliveryState]] = {
    DeliveryState.WAITING: {DeliveryEvent.MEMBER_CHOSEN: DeliveryState.DELIVERED},
    DeliveryState.DELIVERED: {
        DeliveryEvent.ACKED: DeliveryState.DONE,
        DeliveryEvent.ACKED_EARLY: DeliveryState.COMMITTING,
        DeliveryEvent.NACKED: DeliveryState.WAITING,
        DeliveryEvent.NACKED_WITH_DELAY: DeliveryState.DELAYED,
        DeliveryEvent.TRANSACTION_REJECTED: DeliveryState.WAITING,
        DeliveryEvent.TRANSACTION_REJECTED_WITH_DELAY: DeliveryState.DELAYED,
        DeliveryEvent.GIVEN_UP: DeliveryState.FAILED,
    },
    DeliveryState.DELAYED: {DeliveryEvent.DUE: DeliveryState.WAITING},
    DeliveryState.COMMITTING: {
        DeliveryEvent.TRANSACTION_COMMITTED: DeliveryState.DONE,
        DeliveryEvent.TRANSACTION_REJECTED: DeliveryState.WAITING,
        DeliveryEvent.TRANSACTION_REJECTED_WITH_DELAY: DeliveryState.DELAYED,
        DeliveryEvent.GIVEN_UP: DeliveryState.FAILED,
    },
    DeliveryState.FAILED: {DeliveryEvent.SET_ASIDE: DeliveryState.DONE},
    DeliveryState.DONE: {},
}


class TxState(StrEnum):
    """The states of the transaction of a delivery."""

    PENDING = "pending"
    COMMITTED = "committed"
    REJECTED = "rejected"


class TxEvent(StrEnum):
    """The events of a transaction."""

    STATEMENT = "statement"
    ALL_APPLIED = "the delivery is acked, and all statements are applied"
    REFUSED = "a target refuses a statement, or its stream is deleted"
    GIVEN_UP = "nack, disconnect or withdrawal"


TRANSACTION: Mapping[TxState, Mapping[TxEvent, TxState]] = {
    TxState.PENDING: {
        TxEvent.STATEMENT: TxState.PENDING,
        TxEvent.ALL_APPLIED: TxState.COMMITTED,
        TxEvent.REFUSED: TxState.REJECTED,
        TxEvent.GIVEN_UP: TxState.REJECTED,
    },
    TxState.COMMITTED: {},
    TxState.REJECTED: {},
}


class StatementState(StrEnum):
    """The states of a statement at the driver of its transaction."""

    PENDING = "pending"
    APPLIED = "applied"
    COMMITTED = "committed"
    REJECTED = "rejected"


class StatementEvent(StrEnum):
    """The answers of a statement's target, and the decision of its transaction."""

    APPLIED = "the target has it"
    REFUSED = "the target refuses it, or its stream is deleted"
    APPENDED = "the target has appended its records"
    ABORTED = "its transaction is rejected"


STATEMENT: Mapping[StatementState, Mapping[StatementEvent, StatementState]] = {
    StatementState.PENDING: {
        StatementEvent.APPLIED: StatementState.APPLIED,
        StatementEvent.REFUSED: StatementState.REJECTED,
        StatementEvent.ABORTED: StatementState.REJECTED,
    },
    StatementState.APPLIED: {
        StatementEvent.APPENDED: StatementState.COMMITTED,
        StatementEvent.REFUSED: StatementState.REJECTED,
        StatementEvent.ABORTED: StatementState.REJECTED,
    },
    StatementState.COMMITTED: {},
    StatementState.REJECTED: {},
}


def next_state(table: Mapping[S, Mapping[E, S]], state: S, event: E) -> S:
    """The next state of a table. Raises :class:`PipelineError` when the event cannot happen in the state."""
    found = table[state].get(event)
    if found is None:
        raise PipelineError(f"'{event}' cannot happen while the state is {state}; this is a defect, report it")
    return found
