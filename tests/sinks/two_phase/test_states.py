"""The state tables: nothing is decided twice, and everything comes to an end."""

from __future__ import annotations

from typing import Any

import pytest

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.two_phase.states import (
    BATCH,
    TRANSACTION,
    BatchEvent,
    BatchRun,
    BatchState,
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


def test_every_state_is_reached_and_in_the_tables() -> None:
    assert reachable(dict(BATCH), BatchState.NEW) == set(BatchState) == set(BATCH)
    assert reachable(dict(TRANSACTION), TransactionState.UNKNOWN) == set(TransactionState) == set(TRANSACTION)


def test_behind_the_decision_to_commit_there_is_no_way_to_an_abort() -> None:
    assert reachable(dict(BATCH), BatchState.DECIDED) == {
        BatchState.DECIDED,
        BatchState.COMMITTED,
        BatchState.FINISHED,
    }
    assert TransactionState.UNKNOWN not in reachable(dict(TRANSACTION), TransactionState.COMMITTED)


def test_a_prepared_transaction_leaves_its_state_only_by_a_decision() -> None:
    assert set(TRANSACTION[TransactionState.PREPARED]) == {TransactionEvent.COMMIT, TransactionEvent.ABORT}


@pytest.mark.parametrize("event", [event for event in BatchEvent if event is not BatchEvent.ONE_NO])
def test_an_event_that_is_not_in_the_table_is_a_defect(event: BatchEvent) -> None:
    run = BatchRun(7)
    run.on(BatchEvent.RUN)
    if event in BATCH[BatchState.PREPARING]:
        assert run.on(event) is BatchState.VOTED
        return
    with pytest.raises(SinkError, match="batch 7 is preparing"):
        run.on(event)
