"""Rates between two snapshots, and the history."""

from __future__ import annotations

from typing import Any

from tests.observe.snapshots import instance, receiver, slot, stream
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.record import History, Rate, rates


def at(time: float, came: int, held: int, **of_slot: Any) -> ReceiverStatus:
    return receiver(
        time=time,
        slots=(slot(rows_in=came, rows_out=came - held, rows=held, **of_slot),),
        instances=(instance(rows_in=came, rows_out=came - held),),
        streams=(stream(rows_in=came, rows_out=came - held),),
    )


def test_a_rate_is_the_difference_over_the_time() -> None:
    found = rates(at(10, 100, 50), at(12, 300, 150))

    assert found.seconds == 2
    assert found.total == Rate(100, 50)
    assert found.slots == {0: Rate(100, 50)}
    assert found.instances == {(0, "shop-1"): Rate(100, 50)}
    assert found.streams == {(0, "shop-1", 7): Rate(100, 50)}


def test_a_worker_that_was_replaced_counts_from_zero() -> None:
    found = rates(at(10, 1000, 0), at(12, 300, 100, generation=2))

    assert found.slots == {0: Rate(150, 100)}
    assert not found.instances
    assert not found.streams


def test_rows_that_are_dropped_give_no_negative_rate() -> None:
    assert rates(at(10, 300, 0), at(12, 300, 100)).total == Rate(0, 0)


def test_a_worker_that_does_not_answer_has_no_rate() -> None:
    assert not rates(at(10, 100, 0), receiver(time=12, slots=(slot(state="frozen"),))).slots


def test_no_time_gives_no_rate() -> None:
    assert rates(at(10, 100, 0), at(10, 200, 0)).total == Rate()


def test_a_history_is_bounded_and_its_rates_follow_a_window() -> None:
    history = History(4)
    assert history.rates().total == Rate()
    for second in range(10):
        history.add(at(second, second * second, 0))
    history.add(at(9, 5, 0))

    assert [one.time for one in history] == [6, 7, 8, 9]
    assert history.rates(1).total == Rate(17, 17)
    assert history.rates(100).total == Rate(15, 15)
