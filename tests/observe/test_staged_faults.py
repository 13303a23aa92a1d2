"""Eight staged faults on one real receiver: ``status --json`` and the status page name the cause of each.

Real Spark, real Redis, real connectors, real kills and a real browser. The faults follow each other, because starting a
receiver is the most expensive part. Pictures of the page stay in the test's folder (``--basetemp``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from proving.browser import Browser, Page
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
    page: Page
    pictures: Path
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

    def cause(
        self, code: str, *, healthy: bool = False, again: Callable[[], None] = lambda: None, here: str
    ) -> dict[str, Any]:
        """Wait until ``status --json`` and the page name a cause; returns the status.

        ``again`` stages the fault again, before each look. ``here`` is the part of the page's flow that is marked.
        """
        named: dict[str, Any] = {}
        on_page = ""
        seen: list[str] = []

        def found() -> bool:
            nonlocal on_page
            again()
            exit_code, shown = self.shown()
            seen.append(shown["cause"]["code"])
            if seen[-1] == code:
                assert exit_code == (0 if healthy else 1), shown["cause"]
                named.update(named or shown)
            if not on_page and self.page.run(f"last?.status.cause.code === '{code}'"):
                on_page = self.page.text("#cause")
                self.looks(code, healthy=healthy, here=here)
            return bool(named and on_page)

        try:
            eventually(found, seconds=SECONDS)
        except AssertionError as error:
            raise AssertionError(
                f"{code} was never named ({bool(named)} by status, {on_page!r} by the page); last {seen[-5:]}"
            ) from error
        subject, _, _ = named["cause"]["sentence"].partition(":")
        assert on_page.startswith(subject)
        return named

    def looks(self, code: str, *, healthy: bool, here: str) -> None:
        """The page shows the present cause in the colour of its health, and marks the part of the flow."""
        self.page.picture(self.pictures / f"{code}.png")
        shown = self.page.run(
            "({look: byId('cause').className, title: document.title,"
            " here: [...document.querySelectorAll('#flow li:is(.bad, .here)')]"
            ".map((part) => [part.className, part.querySelector('h3').innerText])})"
        )
        assert shown["look"] == f"cause {'good' if healthy else 'bad'}"
        assert shown["here"] == [["here" if healthy else "bad", f"{here} – here"]]
        assert shown["title"].startswith("✓" if healthy else "✗")

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
def stage(spark: SparkSession, tmp_path: Path, browser: Browser) -> Iterator[Stage]:
    options: dict[str, Any] = {"workers": 1, "cookie": COOKIE, "lease_seconds": 5, "status_page": "127.0.0.1:0"}
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    with (
        EmbeddedRedis() as redis,
        Receiver(spark, "orders", registry=redis.url, **options) as receiver,
        browser.open(receiver.page_address) as page,
    ):
        yield Stage(redis, receiver, tmp_path / "checkpoint", page, pictures)
        assert page.errors() == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)  # eight faults on a busy machine
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
    shown = stage.cause("query-not-started", here="Batch")

    assert [slot["cause"]["code"] for slot in shown["slots"]] == ["query-not-started"]
    assert "receiver.start_query" in shown["cause"]["cure"]


def wrong_cookie(stage: Stage) -> None:
    with contextlib.suppress(Exception):
        BlockingConnector("orders", instance="thief", workers=addresses(stage.receiver), cookie="no", retry=QUICK).open(
            "x"
        )
    shown = stage.cause("wrong-cookie", here="Connectors")

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
    shown = stage.cause("no-data", healthy=True, here="Connectors")

    assert shown["instances"][0]["cause"]["code"] == "no-data"
    assert shown["instances"][0]["cause"]["sentence"].startswith("orders/shop-1 waits: it has sent nothing for ")


def slow_sink(stage: Stage, stream: BlockingStream) -> None:
    stage.gate.clear()
    stage.send(stream)
    shown = stage.cause("sink-slow", healthy=True, here="Batch")

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
    stage.cause("registry-away", here="Workers")
    driver = eventually(lambda: (found := stage.receiver.status()).cause.code == "registry-away" and found)
    assert [slot.state for slot in driver.slots] == ["serving"]
    stage.send(stream)
    eventually(lambda: stream.acknowledged == stage.number)
    stage.redis.start()
    stage.cause("no-data", healthy=True, here="Connectors")


def worker_frozen(stage: Stage, stream: BlockingStream) -> None:
    pid = stage.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        shown = stage.cause("worker-frozen", here="Workers")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert shown["slots"][0]["state"] == "frozen"
    healthy_again(stage, stream)


def worker_lost(stage: Stage, stream: BlockingStream) -> None:
    died = stage.receiver.status().totals.died

    def kill() -> None:
        # A worker is replaced within seconds, so each one that serves is killed until the cause was seen.
        for slot in stage.receiver.status().slots:
            if slot.state == "serving" and slot.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.pid, signal.SIGKILL)

    shown = stage.cause("worker-lost", again=kill, here="Workers")

    assert shown["slots"][0]["state"] == "lost"
    healthy_again(stage, stream)
    (later,) = stage.shown()[1]["slots"]
    assert later["died"] > died
    assert later["deaths"][-1]["error"]


def healthy_again(stage: Stage, stream: BlockingStream) -> None:
    stage.send(stream)
    eventually(lambda: stream.acknowledged == stage.number)
    stage.cause("no-data", healthy=True, here="Connectors")


def checkpoint_unwritable(stage: Stage, stream: BlockingStream) -> None:
    commits = stage.checkpoint / "commits"
    commits.rename(stage.checkpoint / "commits.away")
    commits.write_text("not a folder")
    stage.send(stream)
    shown = stage.cause("checkpoint-unwritable", here="Commit")

    assert str(stage.checkpoint) in shown["cause"]["sentence"]
