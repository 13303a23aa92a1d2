"""The log of decisions: each try is decided once, and old batches are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from wallaroo_spark.errors import CheckpointError, SinkError
from wallaroo_spark.sinks import Prepared, Transaction
from wallaroo_spark.sinks.decision_log import DecisionLog, LoggedBatch, finished_batches, read_names

FOLDER = "_wallaroo/sinks/orders"


def opened(tmp_path: Path, keep: int = 100) -> DecisionLog:
    log = DecisionLog(str(tmp_path), "orders", keep)
    log.load()
    return log


def prepared(batch: int, partition: int = 0) -> Prepared:
    return Prepared(Transaction.new("orders", batch, partition), 3, {"end": 17})


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    log = opened(tmp_path)

    assert log.newest() is None
    assert log.next_try(0) == 0
    assert not log.finished(0)
    assert log.unfinished() == {}


def test_a_decision_to_commit_is_there_for_the_next_process(tmp_path: Path) -> None:
    ours = [prepared(7, 0), prepared(7, 1)]
    assert opened(tmp_path).commit(7, 0, ours)

    log = opened(tmp_path)

    assert log.unfinished() == {7: tuple(ours)}
    assert log.committed(7) == tuple(ours)
    assert log.newest() == (7, "committed")
    log.finish(7)
    assert log.unfinished() == opened(tmp_path).unfinished() == {}
    assert opened(tmp_path).finished(7)
    assert opened(tmp_path).newest() == (7, "finished")
    assert opened(tmp_path).committed(7) == tuple(ours)


def test_the_first_decision_of_a_try_counts(tmp_path: Path) -> None:
    old, new = opened(tmp_path), opened(tmp_path)

    assert new.abort(3, 0)
    assert not old.commit(3, 0, [prepared(3)])
    assert not old.abort(3, 0)

    assert new.next_try(3) == 1
    assert opened(tmp_path).newest() == (3, "aborted")
    assert new.commit(3, 1, [prepared(3)])
    assert list(opened(tmp_path).unfinished()) == [3]


def test_only_the_newest_finished_batches_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path, keep=3)
    for batch in range(10):
        log.abort(batch, 0)
        log.commit(batch, 1, [prepared(batch)])
        if batch != 4:
            log.finish(batch)

    names = sorted(path.name for path in (tmp_path / FOLDER).iterdir())
    assert names == ["4.0.json", "4.1.json"] + [
        f"{n}.{what}" for n in (7, 8, 9) for what in ("0.json", "1.json", "finished")
    ]
    assert log.forgotten(6)
    assert not log.forgotten(7)
    assert list(opened(tmp_path, 3).unfinished()) == [4]


def test_names_of_other_files_are_passed_over() -> None:
    found = read_names(["1.0.json", "1.finished", "02.0.json", "x", "3.json", "4.finished.json", "5.2.json"])

    assert found == {1: LoggedBatch({0}, True), 5: LoggedBatch({2})}
    assert finished_batches(found) == [1]
    assert finished_batches({n: LoggedBatch(set(), n != 2) for n in (3, 2, 0, 1)}) == [0, 1, 3]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"decision":"commit"}', '{"decision":"commit","prepared":[{}]}', "7"]
)
def test_a_decision_that_is_damaged_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "5.0.json").write_text(content)

    with pytest.raises(CheckpointError, match=r"orders/5\.0\.json is not a decision .* whether batch 5 is there"):
        opened(tmp_path)


def test_the_log_of_another_query_is_refused(tmp_path: Path) -> None:
    for _ in range(2):
        opened(tmp_path).claim("first")
    opened(tmp_path).claim(None)

    said = r"is the log of query first, and the checkpoint is of query second.* delete .*/_wallaroo/stages/orders, and"
    with pytest.raises(SinkError, match=said):
        opened(tmp_path).claim("second")
    assert opened(tmp_path).newest() is None


def test_the_sinks_memory_is_in_the_newest_decision_to_commit(tmp_path: Path) -> None:
    for batch in range(4):
        log = opened(tmp_path, keep=2)
        assert log.memory() == ({"batch": batch - 1} if batch else None)
        log.abort(batch, 0)
        assert log.commit(batch, 1, [prepared(batch)], {"batch": batch})
        if batch % 2:
            log.finish(batch)
    assert opened(tmp_path, keep=2).memory() == {"batch": 3}
