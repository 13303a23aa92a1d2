"""A driver or a worker is killed with SIGKILL in the middle of it all: no message is lost, none comes twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.receiver.support import (
    COOKIE,
    Batches,
    Feeders,
    addresses,
    command_of,
    descendants,
    eventually,
    free_ports,
    listeners,
    numbered,
    payloads,
    processes_with,
)
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "WALLAROO_TEST_DRIVER"

StartDriver = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def feeders() -> Iterator[Feeders]:
    with Feeders() as opened:
        yield opened


@pytest.fixture
def mark() -> str:
    """What all processes of the test's drivers have in their environment."""
    return uuid.uuid4().hex


@pytest.fixture
def start_driver(tmp_path: Path, mark: str) -> Iterator[StartDriver]:
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, hold: int = -1) -> subprocess.Popen[bytes]:
        log = (tmp_path / f"driver-{len(started)}.log").open("wb")
        command = [sys.executable, "-m", "tests.receiver.driver", str(tmp_path), str(port), str(hold)]
        environment = os.environ | {MARK: mark, "PYTHONPATH": str(ROOT)}
        with log:
            driver = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        started.append(driver)
        return driver

    yield start
    for driver in started:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert driver.stdin is not None
        driver.stdin.close()
    eventually(lambda: not processes_with(MARK, mark))


def written(directory: Path) -> dict[str, list[str]]:
    """What the driver wrote of each stream, batch by batch."""
    found: dict[str, list[str]] = {}
    for path in sorted((directory / "rows").glob("*.json"), key=lambda path: int(path.stem)):
        for stream, _, value in json.loads(path.read_text()):
            found.setdefault(stream, []).append(value)
    return found


@pytest.mark.spark
def test_a_driver_killed_between_plan_and_commit_goes_on_without_loss_or_repetition(
    start_driver: StartDriver, feeders: Feeders, tmp_path: Path, mark: str
) -> None:
    port = free_ports(2)
    first = start_driver(port, 1)
    feeds = []
    for name in ("a", "b"):
        connector = feeders.connect(f"shop-{name}", f"127.0.0.1:{port},127.0.0.1:{port + 1}")
        feeds.append(feeders.feed(connector, numbered(name, 1, 100)))
    eventually((tmp_path / "held").exists, 90)
    assert (tmp_path / "checkpoint" / "offsets" / "1").exists()
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    family = descendants(first.pid)
    assert any("pyspark" in command_of(pid) for pid in family)
    assert any("redis-server" in command_of(pid) for pid in family)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    # A server that renames itself shows no environment, and what was started late is not in the family.
    eventually(lambda: not processes_with(MARK, mark) and not any(command_of(pid) for pid in family), 30)
    (tmp_path / "held").unlink()

    second = start_driver(port)
    results = [feed.result(120) for feed in feeds]
    assert second.stdin is not None
    second.stdin.close()
    assert second.wait(60) == 0, (tmp_path / "driver-1.log").read_text()[-5000:]

    assert [result.acknowledged for result in results] == [100, 100]
    assert written(tmp_path) == {name: [f"{name} {n}" for n in range(1, 101)] for name in ("a", "b")}
    eventually(lambda: not processes_with(MARK, mark), 30)


def test_a_worker_killed_in_the_middle_of_a_stream_loses_and_repeats_nothing(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    batches = Batches()
    with Receiver(spark, "orders", workers=2, cookie=COOKIE, lease_seconds=3) as receiver:
        stream = receiver.stream()
        query = receiver.start(stream.writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
        connectors = [feeders.connect(name, addresses(receiver)) for name in ("shop-a", "shop-b")]
        streams = [connector.open(name) for connector, name in zip(connectors, "ab", strict=True)]
        for opened in streams:
            for number in range(1, 101):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        before = receiver.status()["workers"]
        owners = {slot["worker"]["instances"][0]: slot for slot in before}
        assert set(owners) == {"shop-a", "shop-b"}
        eventually(lambda: all(opened.acknowledged == 100 for opened in streams))
        batches.hold(lambda number: True)
        for opened in streams:
            for number in range(101, 151):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        assert batches.entered.wait(30)

        victim = owners["shop-a"]
        port = int(victim["worker"]["connect"].rpartition(":")[2])
        (pid,) = listeners(port, descendants(os.getpid()))
        assert "pyspark" in command_of(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: receiver.status()["workers"][victim["slot"]]["submissions"] == 2)
        for opened in streams:
            for number in range(151, 201):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        batches.go()
        for connector in connectors:
            connector.drain(60)
        after = receiver.status()["workers"]
        assert query.isActive

    neighbour = owners["shop-b"]["slot"]
    assert batches.values("a") == payloads("a", 1, 200)
    assert batches.values("b") == payloads("b", 1, 200)
    assert after[victim["slot"]]["last_error"]
    assert after[neighbour]["submissions"] == 1
    assert after[neighbour]["worker"]["generation"] == before[neighbour]["worker"]["generation"]
    assert after[neighbour]["worker"]["counts"].get("replayed", 0) == 0
