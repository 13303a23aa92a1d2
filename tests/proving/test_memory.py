"""What a steady run makes of its samples: who grew, and who was not there for long enough to tell."""

from __future__ import annotations

import pytest

from proving.chaos.memory import Series, growths
from proving.chaos.soak import JAVA_LIMIT, PYTHON_LIMIT, limit


def samples(role: str, first: int, last: int, a_minute: float) -> Series:
    """A process that grows steadily, sampled each second."""
    times = [float(second) for second in range(first, last + 1)]
    return Series(role, times, [100 + a_minute * time / 60 for time in times])


def test_a_growing_process_is_found_with_its_rate() -> None:
    series = {(1, 0.0): samples("worker of slot 0", 0, 600, 0.0), (2, 0.0): samples("Redis", 0, 600, 3.0)}

    growing, steady = growths(series, 240, 600)

    assert (growing.role, growing.pid) == ("Redis", 2)
    assert growing.slope == pytest.approx(3.0, abs=0.001)
    assert growing.slope > limit(growing)
    assert steady.slope == pytest.approx(0.0, abs=0.001)
    assert (growing.first, growing.last) == (112.0, 130.0)


def test_growth_during_the_warm_up_does_not_count() -> None:
    grown = samples("worker of slot 0", 0, 600, 0.0)
    grown.sizes = [min(100 + at, 200) for at in grown.times]

    (found,) = growths({(1, 0.0): grown}, 240, 600)

    assert found.slope == 0.0


def test_a_process_with_few_samples_is_not_judged() -> None:
    short = samples("Python of cluster's worker-1", 300, 400, 50.0)

    assert growths({(1, 0.0): short, (2, 0.0): Series("gone")}, 240, 600) == []


def test_java_may_grow_more_than_python() -> None:
    series = {
        (1, 0.0): samples("executor of cluster's worker-1", 0, 600, 5.0),
        (2, 0.0): samples("driver", 0, 600, 4.0),
    }
    limits = {growth.role: limit(growth) for growth in growths(series, 240, 600)}

    assert limits["executor of cluster's worker-1"] == JAVA_LIMIT > PYTHON_LIMIT
