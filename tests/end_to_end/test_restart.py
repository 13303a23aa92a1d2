"""Queries start again: on their checkpoint, on an older copy of it, with other workers. No gap, no repetition."""

from __future__ import annotations

import asyncio
import functools
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException

from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered, payload, payloads
from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import Record, Records
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_receiver(spark: SparkSession, workers: int, **options: Any) -> Receiver:
    return Receiver(spark, "orders", workers=workers, cookie=COOKIE, lease_seconds=2, **options)


class Gated:
    """A replayable source that gives no message beyond a number until it is opened further."""

    replayable = True

    def __init__(self, name: str, last: int) -> None:
        self.name = name
        self._open_to = 0
        self._last = last
        self._moved = threading.Condition()

    def open_to(self, number: int) -> None:
        """Let the messages up to this one go."""
        with self._moved:
            self._open_to = number
            self._moved.notify_all()

    def records(self) -> Records:
        return Records(self.name, self._records)

    async def _records(self) -> AsyncIterator[Record]:
        for number in range(1, self._last + 1):
            while number > self._open_to:
                await asyncio.to_thread(self._wait, number)
            yield Record(number, payload(self.name, number))

    def _wait(self, number: int) -> None:
        # Only for a limited time, because the thread of a cancelled read has to end.
        with self._moved:
            self._moved.wait_for(lambda: number <= self._open_to, 0.5)


def test_a_query_goes_on_where_it_stopped_with_the_same_and_with_other_workers(
    spark: SparkSession, own_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    sources = [Gated(name, 90) for name in "abc"]

    def run_until(receiver: Receiver, number: int) -> None:
        writer = receiver.stream().writeStream.format("parquet").option("path", table)
        query = receiver.start(writer, checkpoint=checkpoint)
        for source in sources:
            source.open_to(number)
        # Some of it is committed and some is not when the query stops.
        eventually(lambda: query.lastProgress is not None and query.lastProgress["numInputRows"] > 0)
        query.stop()

    with open_receiver(spark, 2, registry=own_redis.url) as receiver:
        # They follow the registry to whatever workers there will be.
        connectors = [feeders.connect(f"shop-{name}", registry=own_redis.url) for name in "abc"]
        feeds = [
            feeders.feed(connector, source.records()) for connector, source in zip(connectors, sources, strict=True)
        ]
        run_until(receiver, 30)
        run_until(receiver, 60)
    with open_receiver(spark, 1, registry=own_redis.url) as receiver:
        writer = receiver.stream().writeStream.format("parquet").option("path", table)
        receiver.start(writer, checkpoint=checkpoint)
        for source in sources:
            source.open_to(90)
        assert [feed.result(SECONDS).acknowledged for feed in feeds] == [90, 90, 90]

    expected = [(f"shop-{name}", n, payload(name, n)) for name in "abc" for n in range(1, 91)]
    assert_df_equality(
        spark.read.parquet(table).select("instance", "message_id", "value"),
        spark.createDataFrame(expected, "instance string, message_id bigint, value binary"),
        ignore_row_order=True,
    )


@pytest.mark.parametrize("kept", ["older", pytest.param("none", marks=pytest.mark.long)])
def test_connectors_of_every_revision_go_back_with_an_older_checkpoint(
    spark: SparkSession, feeders: Feeders, tmp_path: Path, kept: str
) -> None:
    checkpoint, batches = tmp_path / "checkpoint", Batches()
    sources = {revision: Gated(revision, 60) for revision in ("draft-le", "draft-be", "v3")}
    with open_receiver(spark, 2) as receiver:

        def start() -> Any:
            return receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(checkpoint))

        def committed(number: int) -> bool:
            return all(batches.values(name)[-1:] == [payload(name, number)] for name in sources) and not any(
                slot.memory_used for slot in receiver.status().slots
            )

        query = start()
        feeds = []
        for revision, source in sources.items():
            connector = feeders.connect(f"shop-{revision}", addresses(receiver), revision=revision)
            feeds.append(feeders.feed(connector, source.records()))
        for number in (20, 40):
            for source in sources.values():
                source.open_to(number)
            # The worker holds nothing any more: all of it is committed, and the query is idle.
            eventually(functools.partial(committed, number))
            if number == 20:
                # The checksum of commits/N gets its name after commits/N does.
                unfinished = shutil.ignore_patterns(".*.tmp*")
                shutil.copytree(checkpoint, tmp_path / "older", ignore=unfinished)
        query.stop()
        shutil.rmtree(checkpoint)
        if kept == "older":
            shutil.move(tmp_path / "older", checkpoint)
        newest = _newest(checkpoint / "commits") if kept == "older" else -1
        batches.rows = {number: rows for number, rows in batches.rows.items() if number <= newest}

        start()
        for source in sources.values():
            source.open_to(60)
        assert [feed.result(SECONDS).acknowledged for feed in feeds] == [60, 60, 60]

    assert {name: batches.values(name) for name in sources} == {name: payloads(name, 1, 60) for name in sources}


def _newest(log: Path) -> int:
    return max(int(path.name) for path in log.iterdir() if path.name.isdigit())


def leave_a_batch_planned(spark: SparkSession, feeders: Feeders, checkpoint: str) -> None:
    """A query that ends with messages planned and not committed, and nobody left who has them."""
    batches = Batches()
    batches.broken = True
    with open_receiver(spark, 1) as receiver:
        query = receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=checkpoint)
        connector = feeders.connect("shop-1", addresses(receiver))
        connector.open("numbers").send(b"lost", id=10)
        with pytest.raises(StreamingQueryException, match="the sink is broken"):
            query.awaitTermination(int(SECONDS))
        connector.close()


def test_a_planned_batch_whose_connector_stays_away_fails_the_query_and_names_the_connector(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    leave_a_batch_planned(spark, feeders, checkpoint)

    with open_receiver(spark, 1, replay_timeout=1) as receiver:
        query = receiver.start(receiver.stream().writeStream.foreachBatch(Batches()), checkpoint=checkpoint)
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination(int(SECONDS))

    said = str(failed.value)
    assert "planned messages of instance 'shop-1' stream" in said
    assert "were not sent again within 1 seconds (replayTimeout)" in said


def test_a_planned_batch_that_is_lost_is_left_out_when_that_is_allowed(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    leave_a_batch_planned(spark, feeders, checkpoint)
    batches = Batches()

    with open_receiver(spark, 1, replay_timeout=1, fail_on_data_loss=False) as receiver:
        query = receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=checkpoint)
        planned = _newest(Path(checkpoint) / "offsets")
        eventually(lambda: receiver.status().query.committed_batch == planned)
        connector = feeders.connect("shop-1", addresses(receiver))
        stream = connector.open("numbers")
        # The messages that were left out count as committed.
        assert stream.reference == 10
        stream.send(b"new", id=30)
        connector.drain(SECONDS)
        assert query.isActive

    assert batches.values("numbers") == [b"new"]


def test_a_receiver_can_be_started_again_after_it_was_stopped(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    batches = Batches()
    receiver = open_receiver(spark, 2)
    for begin in (1, 51):
        with receiver:
            receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
            connector = feeders.connect("shop-1", addresses(receiver))
            feeders.feed(connector, numbered("numbers", 1, begin + 49)).result(SECONDS)
            connector.close()
        assert receiver.status().slots == ()

    assert batches.values("numbers") == payloads("numbers", 1, 100)


def test_stopping_frees_every_task_slot_and_may_come_while_starting(spark: SparkSession) -> None:
    receiver = open_receiver(spark, 3)
    caught: list[BaseException] = []

    def start() -> None:
        try:
            receiver.start()
        except BaseException as error:
            caught.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    eventually(lambda: receiver.status().slots)
    receiver.stop()
    starting.join(SECONDS)

    assert [type(error).__name__ for error in caught] == ["ConfigurationError"]
    assert "stopped while it was starting" in str(caught[0])
    tracker = spark.sparkContext.statusTracker()
    eventually(lambda: not tracker.getActiveStageIds())
    # All three slots are free at once.
    began = time.monotonic()
    assert spark.range(0, 4, 1, 4).count() == 4
    assert time.monotonic() - began < 60
