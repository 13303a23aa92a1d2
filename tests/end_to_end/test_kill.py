"""A worker is killed with SIGKILL in the middle of it all: no message is lost, none comes twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proving.processes import command_of, descendants, listeners
from tests.receiver.support import COOKIE, Batches, Feeders, addresses, payloads
from tests.waiting import SECONDS, eventually
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry.embedded import lasting_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.both
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
        status = receiver.status()
        before = status.slots
        owners = {one.name: before[one.slot] for one in status.instances}
        assert set(owners) == {"shop-a", "shop-b"}
        eventually(lambda: all(opened.acknowledged == 100 for opened in streams))
        batches.hold(lambda number: True)
        for opened in streams:
            for number in range(101, 151):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        assert batches.entered.wait(SECONDS)

        victim = owners["shop-a"]
        port = int(victim.address.rpartition(":")[2])
        (pid,) = listeners(port, descendants(os.getpid()))
        assert "pyspark" in command_of(pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: receiver.status().slots[victim.slot].submissions == 2)
        for opened in streams:
            for number in range(151, 201):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        batches.go()
        for connector in connectors:
            connector.drain(SECONDS)
        after = receiver.status().slots
        assert query.isActive

    neighbour = owners["shop-b"].slot
    assert batches.values("a") == payloads("a", 1, 200)
    assert batches.values("b") == payloads("b", 1, 200)
    assert after[victim.slot].last_error
    assert after[neighbour].submissions == 1
    assert after[neighbour].generation == before[neighbour].generation
    assert after[neighbour].counts.get("replayed", 0) == 0


@pytest.mark.parametrize(
    "fixed", [pytest.param(False, id="any port"), pytest.param(True, id="a fixed port", marks=pytest.mark.long)]
)
def test_a_worker_that_is_stopped_for_good_is_replaced(
    spark: SparkSession, feeders: Feeders, tmp_path: Path, fixed: bool
) -> None:
    batches, port = Batches(), lasting_port(range(2)) if fixed else 0
    with Receiver(spark, "orders", workers=2, cookie=COOKIE, lease_seconds=1.5, port=port) as receiver:
        stream = receiver.stream()
        query = receiver.start(stream.writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
        connectors = [feeders.connect(name, addresses(receiver)) for name in ("shop-a", "shop-b")]
        streams = [connector.open(name) for connector, name in zip(connectors, "ab", strict=True)]
        for opened in streams:
            opened.send(f"{opened.name} 1".encode(), id=1)
        eventually(lambda: all(opened.acknowledged == 1 for opened in streams))
        status = receiver.status()
        victim = next(status.slots[one.slot] for one in status.instances if one.name == "shop-a")
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGSTOP)
        for opened in streams:
            for number in range(2, 51):
                opened.send(f"{opened.name} {number}".encode(), id=number)
        for connector in connectors:
            connector.drain(120)
        slot = victim.slot
        # Its neighbour may have had all of it acknowledged before the next worker is there.
        eventually(lambda: receiver.status().slots[slot].answers, seconds=120)
        after = receiver.status().slots
        assert query.isActive

    assert [batches.values(name) for name in "ab"] == [payloads(name, 1, 50) for name in "ab"]
    assert after[slot].submissions == 2
    assert after[slot].generation > victim.generation
    assert not fixed or after[slot].address == victim.address
    assert after[1 - slot].submissions == 1
    eventually(lambda: not Path(f"/proc/{victim.pid}").exists())
