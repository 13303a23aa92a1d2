"""The table of a transaction: nothing is decided twice, and everything comes to an end."""

from __future__ import annotations

from typing import Any

from wallaroo_spark.sinks.server.journal import (
    TRANSACTION,
    TransactionEvent,
    TransactionState,
)


def reachable(table: dict[Any, Any], start: object) -> set[object]:
    seen, todo = {start}, [start]
    while todo:
        for target in table[todo.pop()].values():
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def test_every_state_is_reached_and_in_the_table() -> None:
    assert reachable(dict(TRANSACTION), TransactionState.UNKNOWN) == set(TransactionState) == set(TRANSACTION)


def test_behind_the_decision_to_commit_there_is_no_way_to_an_abort() -> None:
    assert TransactionState.UNKNOWN not in reachable(dict(TRANSACTION), TransactionState.COMMITTED)


def test_a_prepared_transaction_leaves_its_state_only_by_a_decision() -> None:
    assert set(TRANSACTION[TransactionState.PREPARED]) == {TransactionEvent.COMMIT, TransactionEvent.ABORT}
