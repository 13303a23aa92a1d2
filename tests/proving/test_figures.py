"""The figures themselves; how fast anything is, no test says."""

from __future__ import annotations

import math

import pytest

from proving.bench.results.figures import Spread, amount, at, percentile, rates, table
from proving.bench.results.goals import GOALS, Goal, goals_table


def test_a_percentile_counts_every_message_of_a_chunk() -> None:
    waits = [(0.3, 1), (0.1, 98), (0.2, 1)]

    assert percentile(waits, 0.5) == 0.1
    assert percentile(waits, 0.99) == 0.2
    assert percentile(waits, 0.999) == 0.3
    assert math.isnan(percentile([], 0.5))
    assert math.isnan(percentile([(1.0, 0)], 0.5))


def test_a_count_between_two_points_is_interpolated() -> None:
    points = [(1.0, 0.0), (2.0, 100.0), (4.0, 100.0)]

    assert [at(points, time) for time in (0.0, 1.5, 2.0, 3.0, 9.0)] == [0.0, 50.0, 100.0, 100.0, 100.0]
    assert at([], 1.0) == 0.0
    assert rates(points, [1.0, 2.0, 4.0]) == [100.0, 0.0]


def test_a_spread_says_its_median_and_every_repetition() -> None:
    assert Spread.of([3, 1, 2]).to_json() == {
        "median": 2.0,
        "least": 1.0,
        "most": 3.0,
        "repetitions": [3.0, 1.0, 2.0],
    }


@pytest.mark.parametrize(
    ("more", "value", "said"),
    [
        (True, 7.0, "aim met"),
        (True, 4.0, "met"),
        (True, 2.9, "missed"),
        (False, 2.0, "aim met"),
        (False, 7.0, "missed"),
        (True, None, "not measured"),
        (True, math.nan, "not measured"),
    ],
)
def test_a_goal_judges_a_value(more: bool, value: float | None, said: str) -> None:
    limit, aim = (3, 6) if more else (6, 3)

    assert Goal("key", "what", "x", limit, aim, more).says(value) == said


def test_a_table_has_figures_to_the_right() -> None:
    assert table(("name", "count"), [("one", "1"), ("two", "22,000")]) == (
        "| name | count  |\n|------|--------|\n| one  |      1 |\n| two  | 22,000 |"
    )


def test_amounts_are_short() -> None:
    shown = [amount(value) for value in (None, math.nan, 1.234, 12, 456.7, 23_456, 1_234_567)]

    assert shown == ["-", "-", "1.23", "12", "457", "23.5 k", "1.23 M"]


def test_every_goal_has_a_row_measured_or_not() -> None:
    shown = goals_table({"decode": 3.5e6}).splitlines()

    assert len(shown) == 2 + len(GOALS)
    measured = [line for line in shown[2:] if "not measured" not in line]
    assert len(measured) == 1
    assert "3.5 M" in measured[0]
    assert "| met " in measured[0]
