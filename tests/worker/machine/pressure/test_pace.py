"""Credits that follow the rate of the query: single rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving.bench.simulated_loads import MEBIBYTE
from tests.protocol.strategies import steady
from wallaroo_spark.worker.machine.pressure.pace import (
    CREEP_SECONDS,
    PATIENCE_SECONDS,
    PROBE_EVERY,
    SMALLEST_BATCH,
    WORTH,
    Pace,
)

MOST = 192 * MEBIBYTE
SMALL = 100_000


class Driven:
    """A pace whose buffer is filled and emptied by hand: batches that take all there is, of so many seconds each."""

    def __init__(self, most: int = MOST) -> None:
        self.pace = Pace(most)
        self.now = 0.0
        self.number = -1
        self.taken = 0
        self.waiting = 0

    def fill(self, size: int | None = None) -> None:
        """Accept ``size`` bytes, or as many as the limit allows; held bytes stay when the limit is below them."""
        free = max(0, self.pace.limit - self.taken - self.waiting)
        self.waiting += free if size is None else size
        self.pace.arrived(self.taken + self.waiting)

    def commit(self, seconds: float, batches: int = 1) -> None:
        """The running batch ends, and the held bytes become the next one."""
        self.now += seconds
        self.number += batches
        freed, self.taken, self.waiting = self.taken, self.waiting, 0
        self.pace.committed(self.now, self.number, freed, self.taken)

    def tick(self, seconds: float, plannable: bool = True) -> None:
        self.now += seconds
        self.pace.tick(self.now, self.taken + self.waiting, lambda: plannable)


@pytest.fixture
def known() -> Driven:
    """After the first batches of a sink of 4 MiB/s with a fixed price of half a second."""
    driven = Driven()
    for _ in range(12):
        driven.fill()
        driven.commit(0.5 + driven.taken / (4 * MEBIBYTE))
    return driven


class TestRules:
    def test_a_batch_is_worth_so_many_fixed_prices(self, known: Driven) -> None:
        assert known.pace.batch == pytest.approx(4 * MEBIBYTE * 0.5 * WORTH, rel=0.1)

    def test_there_is_room_for_the_batch_that_runs_and_the_next(self, known: Driven) -> None:
        assert known.taken == pytest.approx(known.pace.batch, rel=0.02)
        assert known.pace.limit == known.taken + known.pace.batch

    def test_a_small_buffer_is_not_regulated(self) -> None:
        driven = Driven(2 * SMALLEST_BATCH)
        for _ in range(100):
            driven.fill()
            driven.commit(10)
            assert driven.pace.limit == driven.pace.most

    def test_a_batch_that_had_all_there_was_changes_nothing(self, known: Driven) -> None:
        before = known.pace.batch
        known.commit(10)
        known.commit(10)
        for seconds in (0.5, 30, 0.6, 0.5):
            known.fill(SMALL)
            known.commit(seconds)

        assert known.pace.batch == before

    def test_a_lull_is_no_long_batch(self, known: Driven) -> None:
        before = known.pace.batch
        for _ in range(3):
            known.commit(10)
        known.tick(600)
        known.fill()
        known.commit(0.5 + 1)

        assert known.pace.batch >= before

    def test_one_long_batch_at_most_halves_the_limit_of_the_next(self, known: Driven) -> None:
        before = known.pace.batch
        known.fill()
        known.commit(300)

        assert known.pace.batch == before // 2
        known.fill()
        assert known.waiting > 0

    def test_a_late_commit_notice_does_not_count_as_a_high_rate(self, known: Driven) -> None:
        before = known.pace.batch
        known.fill()
        known.commit(20)
        known.fill()
        known.commit(0.01)
        known.fill()
        known.commit(10)

        assert before / 2 <= known.pace.batch

    def test_commits_told_of_together_are_as_many_batches(self, known: Driven) -> None:
        before = known.pace.batch
        known.fill(SMALL)
        known.commit(10, batches=20)
        known.commit(10, batches=20)
        known.fill()
        known.commit(10)
        known.fill()
        known.commit(10)

        assert known.pace.batch == pytest.approx(before, rel=0.5)

    def test_batches_are_made_small_at_the_same_numbers_everywhere(self, known: Driven) -> None:
        small = []
        while known.number < 3 * PROBE_EVERY:
            known.fill()
            known.commit(0.5 + known.taken / (4 * MEBIBYTE))
            if known.taken < known.pace.batch // 10:
                small.append(known.number)

        assert small == [n + late for n in range(PROBE_EVERY, 3 * PROBE_EVERY, PROBE_EVERY) for late in (1, 2)]

    def test_no_batch_is_made_small_where_batches_must_not_be(self) -> None:
        driven = Driven()
        driven.pace.bound(50 * MEBIBYTE, MOST)
        for _ in range(2 * PROBE_EVERY):
            driven.fill()
            assert driven.waiting >= 48 * MEBIBYTE or driven.taken > 48 * MEBIBYTE
            driven.commit(5)

    def test_a_batch_is_no_larger_than_the_query_takes(self, known: Driven) -> None:
        known.pace.bound(0, 3 * MEBIBYTE)

        assert known.pace.batch == 3 * MEBIBYTE
        assert known.pace.limit <= 9 * MEBIBYTE

    def test_nothing_that_can_be_planned_frees_all_of_the_limit_at_once(self, known: Driven) -> None:
        known.fill()
        known.tick(0.25, plannable=False)
        assert known.pace.limit == MOST

        known.fill()
        known.tick(0.25)
        known.commit(10)
        assert known.pace.limit < MOST

    def test_a_full_buffer_may_slowly_hold_more_while_no_commit_comes(self, known: Driven) -> None:
        known.fill()
        before = known.pace.limit
        for _ in range(round(PATIENCE_SECONDS)):
            known.tick(1)
        assert known.pace.limit == before

        for _ in range(60):
            known.tick(1)
            known.fill()
        assert known.pace.limit - before == pytest.approx(60 / CREEP_SECONDS * MOST, rel=0.02)
        for _ in range(round(CREEP_SECONDS)):
            known.tick(1)
            known.fill()
        assert known.pace.limit == MOST

    def test_a_query_that_starts_again_is_another(self, known: Driven) -> None:
        known.pace.restart(known.number)

        assert known.pace.batch == Pace(MOST).batch
        assert known.pace.limit == Pace(MOST).limit

    def test_without_a_clock_nothing_is_learned(self) -> None:
        driven = Driven()
        for _ in range(10):
            driven.fill()
            driven.commit(0)

        assert driven.pace.batch == Pace(MOST).batch


@steady
@given(
    st.integers(1, 1 << 40),
    st.lists(st.tuples(st.sampled_from("fcth"), st.floats(0, 1000), st.booleans()), max_size=60),
)
def test_the_limit_stays_within_the_budget_and_above_zero(most: int, moves: list[tuple[str, float, bool]]) -> None:
    driven = Driven(most)
    for move, seconds, flag in moves:
        match move:
            case "f":
                driven.fill(None if flag else int(seconds * 1000))
            case "h":
                driven.pace.bound(seconds * 1e5, seconds * 1e6)
            case "c":
                driven.commit(seconds, 1 + 70 * flag)
            case "t":
                driven.tick(seconds, flag)
        pace = driven.pace
        assert 0 < pace.batch <= most
        assert 0 < pace.limit <= most
    for _ in range(200):
        driven.fill(max(0, driven.pace.limit - driven.taken - driven.waiting))
        driven.tick(10)
    assert driven.pace.limit == most
