"""The requirements of every transactional sink, as checks that take a sink and a function that reads its visible
rows."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.coordinator import Coordinator, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.interface import Prepared, Sink, Transaction
from wallaroo_spark.sinks.stores.staged_rows import StagedRows


@dataclass
class Store:
    """A sink under test. ``make`` gives a new one, as another process would have; ``seen`` the values readers see."""

    make: Callable[[], Sink]
    seen: Callable[[], list[str]]
    column: str = "value"

    def prepare(self, batch: int, *partitions: list[str], sink: Sink | None = None) -> list[Prepared]:
        """Prepare partitions with these values, each by a copy of the sink such as a task gets."""
        sink = sink or self.make()
        return [
            pickle.loads(pickle.dumps(sink)).prepare(Transaction.new(sink.name, batch, number), self.rows(*values))
            for number, values in enumerate(partitions)
        ]

    def rows(self, *values: str) -> Iterator[pa.RecordBatch]:
        """The rows of a partition, two to a piece."""
        for first in range(0, len(values), 2):
            yield pa.record_batch({self.column: pa.array(values[first : first + 2], pa.string())})


def check_batches_appear_whole_and_once(store: Store) -> None:
    sink = store.make()
    first = store.prepare(0, ["a", "b", "c"], [], ["d"], sink=sink)
    assert store.seen() == []
    assert {one.transaction for one in first if one.rows} <= set(sink.recover())

    sink.commit(0, first)
    assert sorted(store.seen()) == ["a", "b", "c", "d"]
    sink.commit(0, first)
    store.make().commit(0, first)
    assert sorted(store.seen()) == ["a", "b", "c", "d"]
    assert store.make().recover() == []

    second = store.prepare(1, ["e"])
    store.make().commit(1, second)
    store.make().commit(1, second)
    assert sorted(store.seen()) == ["a", "b", "c", "d", "e"]


def check_what_is_aborted_is_gone(store: Store) -> None:
    before = store.prepare(0, ["kept"])
    store.make().commit(0, before)
    prepared = store.prepare(1, ["x"], ["y"])
    transactions = [one.transaction for one in prepared]
    sink = store.make()

    assert set(sink.recover()) == set(transactions)
    sink.abort(transactions)
    sink.abort([*transactions, Transaction(sink.name, 1, 7, "unknown")])
    assert (list(store.make().recover()), store.seen()) == ([], ["kept"])

    again = store.prepare(1, ["z"])
    store.make().commit(1, again)
    assert sorted(store.seen()) == ["kept", "z"]


def check_attempts_that_nobody_decided_end_with_their_batch(store: Store) -> None:
    sink = store.make()
    orphan, chosen = store.prepare(4, ["twice"]), store.prepare(4, ["twice"])

    sink.commit(4, chosen)

    assert store.seen() == ["twice"]
    assert list(sink.recover()) == []
    sink.abort([orphan[0].transaction])
    assert store.seen() == ["twice"]


def check_rows_that_fail_half_way_leave_nothing(store: Store) -> None:
    sink = store.make()

    def failing() -> Iterator[pa.RecordBatch]:
        yield from store.rows("a", "b")
        raise RuntimeError("the query's own")

    with pytest.raises(RuntimeError, match="the query's own"):
        sink.prepare(Transaction.new(sink.name, 0, 0), failing())
    sink.abort(sink.recover())

    assert (store.seen(), list(sink.recover())) == ([], [])


def check_a_batch_of_nothing_is_nothing(store: Store) -> None:
    sink = store.make()
    sink.commit(0, store.prepare(0, [], []))
    sink.commit(1, [])

    assert (store.seen(), list(sink.recover())) == ([], [])


def check_a_crash_behind_the_commit_repeats_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """For stores whose rows are prepared beside the checkpoint, and are still there after such a crash."""

    def die(_: StagedRows, batch: int) -> None:
        raise SystemExit(batch)

    prepared = store.prepare(0, ["a"], ["b"])
    monkeypatch.setattr(StagedRows, "clear", die)
    for _ in range(2):
        with pytest.raises(SystemExit):
            store.make().commit(0, prepared)
        assert sorted(store.seen()) == ["a", "b"]
    monkeypatch.undo()

    store.make().commit(0, prepared)

    assert (sorted(store.seen()), list(store.make().recover())) == (["a", "b"], [])


def check_two_drivers_that_commit_one_batch_commit_it_once(store: Store, _: Path, patch: pytest.MonkeyPatch) -> None:
    """The one reads the table, and the other commits before it writes."""
    store.make().commit(0, store.prepare(0, ["a"]))
    prepared = store.prepare(1, ["b"])
    slow: Any = store.make()
    read = slow._table
    stale = [read()]
    store.make().commit(1, prepared)
    patch.setattr(slow, "_table", lambda: stale.pop() if stale else read())
    slow.commit(1, prepared)

    assert sorted(store.seen()) == ["a", "b"]


def check_a_new_checkpoint_writes_its_batches_and_an_old_one_is_refused(
    store: Store, checkpoint: Path, _: pytest.MonkeyPatch
) -> None:
    backup = checkpoint.with_name("backup")
    store.make().commit(0, store.prepare(0, ["a"]))
    left = store.prepare(1, ["b"])
    shutil.copytree(checkpoint, backup)
    store.make().commit(1, left)

    # An older checkpoint lists a transaction as undecided that was committed since: its rows must stay.
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    sink = store.make()
    sink.abort(sink.recover())
    assert sorted(store.seen()) == ["a", "b"]
    assert "has batch 1 already, and this is batch 1" in refuses(store.make(), {"value": pa.array(["c"])}, 1)

    shutil.rmtree(checkpoint)
    store.make().commit(0, store.prepare(0, ["again"]))
    assert sorted(store.seen()) == ["a", "again", "b"]


def check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over(store: Store, checkpoint: Path) -> None:
    """For stores whose tasks do not know the newest batch."""
    backup = checkpoint.with_name("backup")
    deliver(store, checkpoint, 0, "a")
    shutil.copytree(checkpoint, backup)
    deliver(store, checkpoint, 1, "b")
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)

    with pytest.raises(SinkError, match="has batch 1 already, and this is batch 1"):
        deliver(store, checkpoint, 1, "other")
    deliver(store, checkpoint, 2, "c")
    assert (sorted(store.seen()), list(store.make().recover())) == (["a", "b", "c"], [])


def deliver(store: Store, checkpoint: Path, batch: int, *values: str) -> None:
    """Write a batch of one partition as a query does whose process has just begun."""
    sink = store.make()
    coordinator = Coordinator(sink, DecisionLog(str(checkpoint), sink.name))
    coordinator.deliver(batch, lambda number: [vote(sink, number, 0, store.rows(*values))])


OF_TABLES: list[Any] = [
    check_two_drivers_that_commit_one_batch_commit_it_once,
    check_a_new_checkpoint_writes_its_batches_and_an_old_one_is_refused,
]
"""Checks of sinks on tables that record the newest batch; they take the checkpoint's folder too."""

CHECKS: list[Any] = [
    check_batches_appear_whole_and_once,
    check_what_is_aborted_is_gone,
    check_attempts_that_nobody_decided_end_with_their_batch,
    check_rows_that_fail_half_way_leave_nothing,
    check_a_batch_of_nothing_is_nothing,
]


def name_of(check: Callable[..., None]) -> str:
    """A check's name as the id of a test."""
    return check.__name__.removeprefix("check_")


def refuses(sink: Sink, columns: dict[str, Any], batch: int = 0) -> str:
    """The reason of a sink's vote to abort rows with these columns."""
    with pytest.raises(SinkError) as refused:
        sink.prepare(Transaction.new(sink.name, batch, 0), iter([pa.record_batch(columns)]))
    return refused.value.message
