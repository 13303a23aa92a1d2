"""An application without Spark dies at each of its points, one after the other, and every promise is kept.

A life that follows a death finds new requests, and those that were not answered. So the points are those of batches
that begin, of batches that run again, and of work after commits that was interrupted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.sweep import shop
from tests.waiting import SECONDS

MOST_POINTS = 600
"""Bounds a life."""
SOME_POINTS = range(11, 200, 38)
"""The points of the short form: of a gateway's start, of tasks, and of the work after commits."""


class Lives:
    """The process that forks the lives of one application, and the publisher who outlives them."""

    def __init__(self, directory: Path) -> None:
        self.shop = shop.Shop(directory / "shop", "")
        self.deaths: Counter[str] = Counter()
        """Points at which a process died."""
        self._wanted: list[tuple[str, int]] = []
        self._versions = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.sweep.loop"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def live(self, die_at: int, *, alone: bool = False) -> bool:
        """One life; returns whether it came to its end."""
        self.shop.published += 1
        self.shop.ticks += 1
        self._wanted += [("orders", self.shop.published), ("ticks", self.shop.ticks)]
        if self.shop.published % 3 == 0:
            self.shop.reminders += 1
            self._wanted.append(("reminders", self.shop.reminders))
        apply = self.shop.published % 2 == 1
        asked = {
            "folder": str(self.shop.folder),
            "die_at": die_at,
            "alone": alone,
            "version": self._versions if apply else None,
            "wanted": self._wanted,
        }
        self._versions += apply
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        done = False
        for told in self._told():
            if "request" in told:
                stream, number = told["request"]
                self._answered(stream, number, told["places"])
            elif "point" in told:
                self.deaths[told["point"]] += 1
            done |= "done" in told
            if "ended" in told:
                assert told["ended"] == (0 if done else -9), told
                return done
        raise AssertionError("the process that forks the lives is gone")

    def _told(self) -> Iterable[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def _answered(self, stream: str, number: int, places: list[list[Any]]) -> None:
        self._wanted.remove((stream, number))
        if stream == "orders":
            [[_, partition, offset]] = places
            self.shop.answered[number] = partition, offset


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    opened = Lives(tmp_path)
    yield opened
    opened.close()


def test_every_promise_is_kept_after_deaths_at_some_points(lives: Lives) -> None:
    for number in SOME_POINTS:
        lives.live(number, alone=number % 2 == 0)
    assert lives.live(0)

    verdict = lives.shop.verdict()
    assert verdict.broken == [], shop.describe(verdict)
    assert len(lives.deaths) > len(SOME_POINTS) / 2


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("alone", [False, True], ids=["with the driver", "a task alone"])
def test_every_promise_is_kept_after_a_death_at_every_point(lives: Lives, alone: bool) -> None:
    for number in range(1, MOST_POINTS):
        died = lives.deaths.total()
        lives.live(number, alone=alone)
        if lives.deaths.total() == died:
            break
    assert lives.live(0)

    verdict = lives.shop.verdict()
    print(shop.describe(verdict), f"{lives.deaths.total()} deaths", *sorted(lives.deaths), sep="\n")
    assert verdict.broken == [], shop.describe(verdict)
    assert verdict.counts["expired"]
    assert number < MOST_POINTS - 1
