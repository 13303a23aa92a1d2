"""A glance sees every change of the commit log, though a file system's clock is coarse."""

from __future__ import annotations

import time

import pytest

from wallaroo_spark.checkpoint.glance import Glance
from wallaroo_spark.sidecar.listing import COARSE_NS


class Clock:
    """A commit log that changed at ``at``, None where that cannot be seen; and the time it is, both in ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = 0
        self.now = 10 * COARSE_NS
        monkeypatch.setattr(time, "time_ns", lambda: self.now)

    def stamp(self) -> int | None:
        return self.at


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_change_is_seen_once_its_stamp_is_old(log: Clock) -> None:
    glance = Glance(log)
    assert not glance.changed()

    log.at = log.now - COARSE_NS
    assert [glance.changed() for _ in range(3)] == [True, False, False]


def test_a_young_stamp_is_looked_behind_again(log: Clock) -> None:
    glance = Glance(log)
    log.at = log.now

    assert [glance.changed() for _ in range(3)] == [True, True, True]
    log.now += COARSE_NS
    assert not glance.changed()


def test_where_looking_is_not_cheap_nothing_is_seen(log: Clock) -> None:
    glance = Glance(log)
    log.at = None

    assert not glance.cheap()
    assert not glance.changed()
