"""Eight staged faults on one real receiver: ``status --json`` and ``receiver.status()`` name the cause of each.

Real Spark, real Redis, real connectors and real kills. The faults follow each other, because starting a receiver is the
most expensive part.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.receiver.support import COOKIE, QUICK, Feeders, addresses
from tests.waiting import eventually
from wallaroo_spark.cli.main import cli
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wallaroo_spark.connector.blocking import BlockingStream

SECONDS = 120.0


@dataclass
class Stage:
    """A receiver with one worker, its Redis and its checkpoint."""

    redis: EmbeddedRedis
    receiver: Receiver
    checkpoint: Path
    gate: threading.Event = field(default_factory=threading.Event)
    number: int = 0

    def sink(self, rows: DataFrame, batch: int) -> None:
        """A sink that is slow while the gate is closed."""
        if rows.count():
            assert self.gate.wait(SECONDS)

    def shown(self) -> tuple[int, dict[str, Any]]:
        """The exit status and the JSON of ``wallaroo-spark status``."""
        given = ["status", "--json", "--registry", self.redis.url, "--receiver", self.receiver.name]
        result = CliRunner().invoke(cli, given)
        return result.exit_code, json.loads(result.stdout)

    def cause(self, code: str, *, healthy: bool = False) -> dict[str, Any]:
        """Wait until ``status --json`` names a cause; returns the status."""
        seen: list[str] = []

        def found() -> dict[str, Any] | None:
            exit_code, shown = self.shown()
            seen.append(shown["cause"]["code"])
            if shown["cause"]["code"] != code:
                return None
            assert exit_code == (0 if healthy else 1), shown["cause"]
            return shown

        try:
            named: dict[str, Any] = eventually(found, seconds=SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{code} was never named; the last causes were {seen[-5:]}") from error
        return named

    def send(self, stream: BlockingStream) -> None:
        """Send one more message."""
        self.number += 1
        stream.send(b"x", id=self.number)

    def pid(self) -> int:
        """The process of the worker, once it serves."""
        slot = eventually(lambda: next((one for one in self.receiver.status().slots if one.state == "serving"), None))
        assert slot.pid is not None
        return slot.pid


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    with (
        EmbeddedRedis() as redis,
        Receiver(
            spark, "orders", workers=1, registry=redis.url, cookie=COOKIE, lease_seconds=5, status_page="off"
        ) as receiver,
    ):
        yield Stage(redis, receiver, tmp_path / "checkpoint")


@pytest.mark.long
@pytest.mark.spark
def test_each_staged_fault_is_named(stage: Stage, feeders: Feeders) -> None:
    not_started(stage)
    query = stage.receiver.start_query(
        stage.receiver.stream().writeStream.foreachBatch(stage.sink), checkpoint=str(stage.checkpoint)
    )
    wrong_cookie(stage)
    stream = feeders.connect("shop-1", registry=stage.redis.url).open("orders.jsonl")
    connector_without_data(stage, stream)
    slow_sink(stage, stream)
    redis_away(stage, stream)
    worker_frozen(stage, stream)
    worker_lost(stage, stream)
    assert query.isActive
    checkpoint_unwritable(stage, stream)


def not_started(stage: Stage) -> None:
    shown = stage.cause("query-not-started")

    assert [slot["cause"]["code"] for slot in shown["slots"]] == ["query-not-started"]
    assert "receiver.start_query" in shown["cause"]["cure"]


def wrong_cookie(stage: Stage) -> None:
    with contextlib.suppress(Exception):
        BlockingConnector("orders", instance="thief", workers=addresses(stage.receiver), cookie="no", retry=QUICK).open(
            "x"
        )
    shown = stage.cause("wrong-cookie")

    (refused,) = {refusal["kind"] for refusal in shown["slots"][0]["refusals"]}
    assert refused == "wrong-cookie"
    # The refusal is old news once a minute has passed; the later faults do not wait for that.
    clear_refusals(stage)


def clear_refusals(stage: Stage) -> None:
    """Replace the worker, which forgets its refusals."""
    before = stage.pid()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: stage.pid() != before)


def connector_without_data(stage: Stage, stream: BlockingStream) -> None:
    stage.gate.set()
    stage.send(stream)
    eventually(lambda: stream.acknowledged == stage.number)
    shown = stage.cause("no-data", healthy=True)

    assert shown["instances"][0]["cause"]["code"] == "no-data"
    assert shown["instances"][0]["cause"]["sentence"].startswith("orders/shop-1 waits: it has sent nothing for ")


def slow_sink(stage: Stage, stream: BlockingStream) -> None:
    stage.gate.clear()
    stage.send(stream)
    shown = stage.cause("sink-slow", healthy=True)

    assert "has been in the query and its sink for" in shown["cause"]["sentence"]
    assert [shown[name][0]["cause"]["code"] for name in ("slots", "instances", "streams")] == ["sink-slow"] * 3
    (row,) = shown["streams"]
    assert (row["name"], row["received"], row["planned"], row["committed"], row["rows"]) == (
        "orders.jsonl",
        str(stage.number),
        str(stage.number),
        str(stage.number - 1),
        1,
    )
    stage.gate.set()
    eventually(lambda: stream.acknowledged == stage.number)


def redis_away(stage: Stage, stream: BlockingStream) -> None:
    stage.redis.stop()
    stage.cause("registry-away")
    driver = eventually(lambda: (found := stage.receiver.status()).cause.code == "registry-away" and found)
    assert [slot.state for slot in driver.slots] == ["serving"]
    stage.send(stream)
    eventually(lambda: stream.acknowledged == stage.number)
    stage.redis.start()
    stage.cause("no-data", healthy=True)


def worker_frozen(stage: Stage, stream: BlockingStream) -> None:
    pid = stage.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        shown = stage.cause("worker-frozen")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert shown["slots"][0]["state"] == "frozen"
    healthy_again(stage, stream)


def worker_lost(stage: Stage, stream: BlockingStream) -> None:
    died = stage.receiver.status().totals.died
    os.kill(stage.pid(), signal.SIGKILL)
    shown = stage.cause("worker-lost")

    assert shown["slots"][0]["state"] == "lost"
    healthy_again(stage, stream)
    (later,) = stage.shown()[1]["slots"]
    assert later["died"] > died
    assert later["deaths"][-1]["error"]


def healthy_again(stage: Stage, stream: BlockingStream) -> None:
    stage.send(stream)
    eventually(lambda: stream.acknowledged == stage.number)
    stage.cause("no-data", healthy=True)


def checkpoint_unwritable(stage: Stage, stream: BlockingStream) -> None:
    commits = stage.checkpoint / "commits"
    commits.rename(stage.checkpoint / "commits.away")
    commits.write_text("not a folder")
    stage.send(stream)
    shown = stage.cause("checkpoint-unwritable")

    assert str(stage.checkpoint) in shown["cause"]["sentence"]
