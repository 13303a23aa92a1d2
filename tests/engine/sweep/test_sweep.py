"""A process of an application dies at each point of its batches, one after the other, and every promise is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.sweep import shop
from tests.engine.sweep.points import DIRECTORY, FOLDER, Points
from tests.receiver.drivers import Drivers
from tests.waiting import eventually
from wallaroo_spark.client import Client
from wallaroo_spark.registry import EmbeddedRedis

AT_ONCE = 3
"""Deaths that are ordered for one round, which come one after the other; a choice that saves time."""
MOST_ROUNDS = 400
"""Bounds the sweep."""
LAST_ROUNDS = 6
"""Rounds in which the driver is killed anyway, so that processes come to the points of a start."""
SETTLED_SECONDS = 3.0
"""How long a point may be reached after the answers of a round, for example by the mover or by a retry."""


class Sweep:
    """An application whose processes die, one in each round."""

    def __init__(self, drivers: Drivers, directory: Path, registry: str) -> None:
        self.points = Points(directory / "points")
        self.shop = shop.Shop(directory / "shop", registry)
        self.deaths: list[str] = []
        """The points at which a process died, in their order."""
        self.armed: dict[str, bool] = {}
        """The points at which a process is to die, and whether alone."""
        self._ordered: set[tuple[str, bool]] = set()
        self.starts = 0
        self._drivers, self._directory, self._registry = drivers, directory, registry
        self._publisher = ThreadPoolExecutor(1)
        self._versions = 0
        shop.apply(self.shop.folder, self._versions)
        self._following = self._launch()
        self.driver = self._take_over()

    def _launch(self) -> subprocess.Popen[bytes]:
        variables = {DIRECTORY: str(self._directory / "points"), FOLDER: str(self.shop.folder)}
        return self._drivers.launch(str(self.shop.folder), self._registry, **variables)

    def _take_over(self) -> subprocess.Popen[bytes]:
        # The next one starts Java meanwhile, because that takes longest.
        driver, self._following = self._following, self._launch()
        self.starts += 1
        self.points.driver_is(driver.pid)
        self._drivers.go(driver)
        return driver

    def order(self) -> bool:
        """Order a death at the next point that a process came to. Returns whether there is one.

        An order stays until somebody comes by, because only the next start comes to some points.
        """
        for point, of_driver in self.points.seen().items():
            for alone in (False,) if of_driver else (True, False):
                if point not in self.armed and (point, alone) not in self._ordered:
                    self._ordered.add((point, alone))
                    self.armed[point] = alone
                    self.points.order(point, alone=alone)
                    return True
        return False

    def round(self, client: Client) -> None:
        """Publish, while processes die where it is ordered, and wait until the application goes on."""
        self._versions += 1
        if not self._versions % 2:
            shop.apply(self.shop.folder, self._versions)
        ordered = set(self.armed)
        published = self._publisher.submit(self.shop.publish, client)
        eventually(lambda: self._replaced() or published.done(), seconds=2 * shop.TIMEOUT, pause=0.05)
        published.result()
        self._wait_until(lambda: self._replaced() or not ordered - self._note_deaths(), SETTLED_SECONDS)

    def _note_deaths(self) -> set[str]:
        found = {point for point in self.armed if self.points.happened(point)}
        for point in found:
            self.deaths.append(f"{point}, {'alone' if self.armed.pop(point) else 'with the driver'}")
        return found

    def kill_driver(self) -> None:
        """The driver dies at no particular point."""
        self._kill(self.driver)
        self.driver.wait()

    def _replaced(self) -> bool:
        """Let the next driver take over if the driver is gone; always false."""
        if self.driver.poll() is not None:
            self._kill(self.driver)
            self.driver = self._take_over()
        return False

    def _kill(self, driver: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(driver.pid, signal.SIGKILL)
        except ProcessLookupError:
            return

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            time.sleep(0.05)

    def finish(self) -> None:
        """Wait until all instances have ended, and end the driver in good order."""
        wanted = self.shop.expected
        eventually(lambda: self._replaced() or self.shop.ended() >= wanted, seconds=shop.TIMEOUT, pause=1)
        self._drivers.end(self.driver)


@pytest.fixture
def sweep(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Sweep]:
    with Drivers(tmp_path, "tests.engine.sweep.driver") as drivers:
        yield Sweep(drivers, tmp_path, own_redis.url)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_promise_is_kept_after_a_death_at_each_point_of_a_batch(sweep: Sweep) -> None:
    with sweep.shop.client() as client, sweep.shop.working():
        for _ in range(3):
            sweep.round(client)
        for _ in range(MOST_ROUNDS):
            ordered = [sweep.order() for _ in range(AT_ONCE)]
            if not any(ordered):
                break
            sweep.round(client)
            print(f"{len(sweep.deaths)} deaths, {sweep.starts} drivers, to come: {[*sweep.armed]}", flush=True)
        for _ in range(LAST_ROUNDS):
            sweep.kill_driver()
            sweep.round(client)
        unreached = [*sweep.armed]
        for point in unreached:
            sweep.points.withdraw(point)
        sweep.finish()

    verdict = sweep.shop.verdict()
    print(shop.describe(verdict), *sweep.deaths, f"not reached again: {unreached}", sep="\n")
    assert verdict.broken == [], shop.describe(verdict)
    assert verdict.counts["expired"]
    assert len(unreached) <= len(sweep.deaths) / 10, unreached
