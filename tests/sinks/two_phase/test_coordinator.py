"""Two-phase commit in the driver: all rows of a batch or none, once, with a failure of any part at any step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.two_phase.memory import MemorySink, PreCommittingMemorySink, partition_rows, pieces, run_here, whole
from wallaroo_spark.errors import CheckpointError, SinkError
from wallaroo_spark.sinks import Transaction
from wallaroo_spark.sinks.coordinator import Coordinator, Vote, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.steps import SinkStep, at_each


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def start(tmp_path: Path, sink: MemorySink) -> Callable[..., Coordinator]:
    """Starts the driver again, each time with nothing but the log and the sink."""
    return lambda **settings: Coordinator(sink, DecisionLog(str(tmp_path), sink.name), **settings)


def test_batches_are_shown_in_their_order(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    driver = start()
    for batch in range(3):
        driver.deliver(batch, run_here(sink))

    assert sink.shown == [*whole(0), *whole(1), *whole(2)]
    assert sink.held == {}
    assert sink.told == ["recover", "commit 0", "commit 1", "commit 2"]


def test_a_batch_that_is_run_again_is_not_even_read(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    start().deliver(5, run_here(sink))

    def run(batch: int) -> list[Vote]:
        raise AssertionError("it was delivered")

    driver = start()
    driver.deliver(5, run)
    driver.deliver(5, run)
    assert sink.shown == whole(5)


def test_one_vote_to_abort_aborts_the_batch_everywhere(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    driver = start()
    driver.deliver(0, run_here(sink))
    sink.refuses = {1}

    with pytest.raises(SinkError, match=r"batch 1 is aborted, because of partition 1: the disk is full") as raised:
        driver.deliver(1, run_here(sink))

    assert raised.value.fields == {"batch": 1, "partition": 1, "reason": "the disk is full"}
    assert sink.shown == whole(0)
    assert sink.held == {}
    sink.refuses = set()
    driver.deliver(1, run_here(sink))
    assert sink.shown == [*whole(0), *whole(1)]


def test_a_task_that_fails_aborts_the_batch_and_its_error_is_passed_on(
    sink: MemorySink, start: Callable[..., Coordinator]
) -> None:
    def run(batch: int) -> list[Vote]:
        vote(sink, batch, 0, pieces(partition_rows(batch, 0)))
        raise ZeroDivisionError("in a task")

    with pytest.raises(ZeroDivisionError):
        start().deliver(0, run)

    assert sink.held == {}
    assert sink.shown == []


def test_an_earlier_attempt_of_a_task_is_thrown_away(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    def run(batch: int) -> list[Vote]:
        vote(sink, batch, 0, pieces(["lost with its executor"]))
        return run_here(sink, attempt=1)(batch)

    driver = start()
    driver.deliver(0, run)

    assert sink.shown == whole(0)
    assert sink.held == {}
    # One that was given up, and did not notice.
    vote(sink, 0, 1, pieces(["late"]))
    driver.deliver(1, run_here(sink))
    assert sink.held == {}
    assert sink.told.count("recover") == 3


def test_a_sink_that_is_away_after_the_decision_is_told_later(
    sink: MemorySink, start: Callable[..., Coordinator]
) -> None:
    driver = start()
    driver.deliver(0, run_here(sink))

    def run(batch: int) -> Any:
        votes = run_here(sink)(batch)
        sink.unreachable = True
        return votes

    with pytest.raises(SinkError, match="batch 1 is decided, and the sink could not commit it: the sink is away"):
        driver.deliver(1, run)
    with pytest.raises(SinkError, match="the sink could not commit it"):
        driver.deliver(1, run)
    assert sink.shown == whole(0)
    sink.unreachable = False

    def not_again(batch: int) -> list[Vote]:
        raise AssertionError("it is decided")

    start().deliver(1, not_again)
    assert sink.shown == [*whole(0), *whole(1)]


def test_a_driver_that_counted_as_dead_cannot_commit(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    old, new = start(), start()

    def run(batch: int) -> Any:
        votes = run_here(sink)(batch)
        new.deliver(batch, run_here(sink))
        return votes

    with pytest.raises(SinkError, match="batch 4 was taken over by another driver"):
        old.deliver(4, run)

    assert sink.shown == whole(4)
    assert sink.held == {}
    old.deliver(4, run_here(sink))
    assert sink.shown == whole(4)


def test_a_failing_driver_does_not_abort_the_decision_of_another(
    sink: MemorySink, start: Callable[..., Coordinator], tmp_path: Path
) -> None:
    """It aborts its own transactions, and not those of the other driver."""
    old = start()

    def run(batch: int) -> list[Vote]:
        votes = run_here(sink)(batch)
        log = DecisionLog(str(tmp_path), sink.name)
        log.load()
        assert log.commit(batch, log.next_try(batch), [one.prepared for one in votes])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        old.deliver(0, run)
    assert len(sink.held) == 2

    start().deliver(0, lambda batch: pytest.fail("it is decided"))
    assert sink.shown == whole(0)


def test_late_transactions_of_a_finished_batch_are_aborted(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    start().deliver(0, run_here(sink))
    sink.held[Transaction.new(sink.name, 0, 1)] = [b"by a task that was cancelled"]
    sink.held[Transaction.new(sink.name, 9, 1)] = [b"of nobody knows what"]

    start().deliver(1, run_here(sink))

    assert sink.held == {}
    assert sink.shown == [*whole(0), *whole(1)]


def test_a_sink_that_has_forgotten_a_decision_is_told_again(
    sink: MemorySink, start: Callable[..., Coordinator]
) -> None:
    """As one that was restored from a copy, made between the two phases."""
    start().deliver(0, run_here(sink))
    sink.held = {one: [row.encode() for row in partition_rows(0, one.partition)] for one in sink.committed}
    sink.shown, sink.committed = [], set()

    start().deliver(1, run_here(sink))

    assert sorted(sink.shown) == [*whole(0), *whole(1)]
    assert sink.held == {}


def test_where_a_partition_may_run_twice_each_batch_looks_for_what_is_left(
    sink: MemorySink, start: Callable[..., Coordinator]
) -> None:
    driver = start(always_recover=True)
    for batch in range(3):
        driver.deliver(batch, run_here(sink))
        sink.held[Transaction.new(sink.name, batch, 0)] = [b"the slower copy"]

    driver.deliver(3, run_here(sink))
    assert sink.held == {}
    assert sink.shown == [row for batch in range(4) for row in whole(batch)]


def test_a_batch_older_than_the_log_is_refused(tmp_path: Path, sink: MemorySink) -> None:
    driver = Coordinator(sink, DecisionLog(str(tmp_path), sink.name, keep=2))
    for batch in range(5):
        driver.deliver(batch, run_here(sink))

    with pytest.raises(SinkError, match=r"batch 2 is older than all that .* remembers"):
        driver.deliver(2, run_here(sink))
    driver.deliver(3, run_here(sink))


def test_an_empty_batch_is_delivered_too(sink: MemorySink, start: Callable[..., Coordinator]) -> None:
    start().deliver(0, lambda batch: [])
    start().deliver(0, lambda batch: pytest.fail("it was delivered"))


@pytest.mark.parametrize("step", [step for step in SinkStep if not step.name.startswith("SERVER")])
def test_a_driver_that_dies_at_any_step_has_delivered_once_in_the_end(
    sink: MemorySink, start: Callable[..., Coordinator], step: SinkStep
) -> None:
    def die(at: object) -> None:
        if at is step:
            raise Died

    start().deliver(0, run_here(sink))
    stop = at_each(die)
    try:
        # A sink in memory is told in one go.
        if step is not SinkStep.HALF_COMMITTED:
            with pytest.raises(Died):
                start().deliver(1, run_here(sink))
    finally:
        stop()
    assert sink.shown in (whole(0), [*whole(0), *whole(1)])

    driver = start()
    for batch in (1, 2):
        driver.deliver(batch, run_here(sink))

    assert sink.shown == [*whole(0), *whole(1), *whole(2)]
    assert sink.held == {}


@pytest.fixture
def trying() -> PreCommittingMemorySink:
    return PreCommittingMemorySink()


def start_of(tmp_path: Path, sink: MemorySink) -> Coordinator:
    return Coordinator(sink, DecisionLog(str(tmp_path), sink.name))


def test_a_pre_commit_is_open_from_the_votes_to_the_commit(tmp_path: Path, trying: PreCommittingMemorySink) -> None:
    start_of(tmp_path, trying).deliver(0, run_here(trying))

    assert trying.told == ["recover", "pre-commit 0", "commit 0", "end of 0"]
    assert trying.shown == whole(0)


def test_a_batch_that_its_pre_commit_refuses_is_aborted_and_not_decided(
    tmp_path: Path, trying: PreCommittingMemorySink
) -> None:
    trying.rejects = {0}
    with pytest.raises(SinkError, match="a key is there twice"):
        start_of(tmp_path, trying).deliver(0, run_here(trying))
    log = DecisionLog(str(tmp_path), trying.name)
    log.load()
    assert (log.newest(), trying.held, trying.shown) == ((0, "aborted"), {}, [])

    trying.rejects = set()
    start_of(tmp_path, trying).deliver(0, run_here(trying))
    assert trying.shown == whole(0)


def test_a_batch_that_was_delivered_or_is_recovered_is_not_tried(
    tmp_path: Path, trying: PreCommittingMemorySink
) -> None:
    def run(batch: int) -> Any:
        votes = run_here(trying)(batch)
        log = DecisionLog(str(tmp_path), trying.name)
        log.load()
        assert log.commit(batch, log.next_try(batch), [one.prepared for one in votes])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start_of(tmp_path, trying).deliver(0, run)
    for _ in range(2):
        start_of(tmp_path, trying).deliver(0, run_here(trying))

    assert not [told for told in trying.told if told.startswith("pre-commit")]
    assert trying.shown == whole(0)


def test_a_pre_commit_that_fails_because_of_a_successor_says_so(
    tmp_path: Path, trying: PreCommittingMemorySink
) -> None:
    def run(batch: int) -> Any:
        votes = run_here(trying)(batch)
        start_of(tmp_path, trying).recover(batch)
        return votes

    with pytest.raises(SinkError, match="batch 0 was taken over by another driver") as raised:
        start_of(tmp_path, trying).deliver(0, run)

    assert "its rows are gone" in str(raised.value.__cause__)
    assert (trying.shown, trying.held) == ([], {})


OPEN_AT = (SinkStep.VOTED, SinkStep.DECIDED, SinkStep.COMMITTED, SinkStep.FINISHED)


@pytest.mark.parametrize("fate", ["the log fails", "another driver decides", "the commit fails", *OPEN_AT])
def test_a_pre_commit_ends_however_its_batch_ends(
    tmp_path: Path, trying: PreCommittingMemorySink, fate: str | SinkStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed(step: object) -> None:
        if step is fate:
            raise Died
        if fate == "the commit fails" and step is SinkStep.DECIDED:
            trying.unreachable = True

    def commit(*_: object) -> bool:
        if fate == "the log fails":
            raise CheckpointError("the disk is full")
        return False

    if fate in ("the log fails", "another driver decides"):
        monkeypatch.setattr(DecisionLog, "commit", commit)
    stop = at_each(passed)
    try:
        with pytest.raises((Died, SinkError, CheckpointError)):
            start_of(tmp_path, trying).deliver(0, run_here(trying))
    finally:
        stop()
    assert trying.told.count("pre-commit 0") == trying.told.count("end of 0") == 1

    monkeypatch.undo()
    trying.unreachable = False
    start_of(tmp_path, trying).deliver(0, run_here(trying))
    assert (trying.shown, trying.held) == (whole(0), {})
