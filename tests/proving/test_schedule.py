"""Schedules: the same one for the same seed, with all that was asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from proving.chaos.schedule import KILLS, Kind, draw


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_is_one_schedule_of_so_many_kills(seed: int) -> None:
    faults = draw(seed, 30, 10.0, 600.0, 5.0)
    assert faults == draw(seed, 30, 10.0, 600.0, 5.0)
    assert sum(fault.kind in KILLS for fault in faults) == 30
    assert {fault.kind for fault in faults} == set(Kind)
    times = [fault.at for fault in faults]
    assert times == sorted(times)
    assert 10.0 <= times[0] <= times[-1] <= 600.1
    assert all(fault.seconds > 5.0 for fault in faults if fault.kind is Kind.STOP)


def test_other_seeds_are_other_schedules() -> None:
    assert len({tuple(draw(seed, 10, 0.0, 100.0, 5.0)) for seed in range(20)}) == 20


def test_some_faults_come_with_no_time_to_recover() -> None:
    times = [fault.at for fault in draw(1, 30, 0.0, 600.0, 5.0)]
    assert any(later - earlier < 1.0 for earlier, later in pairwise(times))
