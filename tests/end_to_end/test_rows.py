"""From connectors to a table, through a real Spark: the rows, their order, and when they are acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered, payloads, rows_of
from tests.waiting import SECONDS, eventually
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.columnar import ROW_DDL
from wallaroo_spark.connector import BlockingConnector, Record, Records, stream_id_of
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.protocol import Flags
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.receiver.announcer import Announcer
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("no_query_left")

EARLIEST = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def receiver(spark: SparkSession, file_redis: EmbeddedRedis) -> Iterator[Receiver]:
    """One running receiver for the tests of this file; each brings its own checkpoint, instances and streams."""
    with Receiver(spark, "orders", workers=2, cookie=COOKIE, registry=file_redis.url, lease_seconds=3) as started:
        yield started


def orders(stream: str, count: int, *, keys: bool) -> Records:
    """Messages with a time each, and a key where there can be one."""
    records = [
        Record(
            10 * number,
            f"{stream} {number}".encode(),
            event_time=EARLIEST + timedelta(milliseconds=number),
            key=f"k{number % 3}".encode() if keys else None,
        )
        for number in range(1, count + 1)
    ]
    return Records(stream, lambda: records)


def expected_rows(instance: str, stream: str, count: int, *, flags: Flags, keys: bool) -> list[tuple[object, ...]]:
    stream_id = stream_id_of(instance, stream)
    signed = stream_id - (1 << 64) if stream_id >> 63 else stream_id
    return [
        (
            instance,
            stream,
            signed,
            10 * number,
            EARLIEST + timedelta(milliseconds=number),
            f"k{number % 3}".encode() if keys else None,
            f"{stream} {number}".encode(),
            int(flags),
        )
        for number in range(1, count + 1)
    ]


def test_connectors_of_every_revision_fill_one_table(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    flags = {
        "draft-le": Flags.EVENT_TIME,
        "draft-be": Flags.EVENT_TIME | Flags.KEY,
        "v3": Flags.NONE,
    }
    table = str(tmp_path / "table")
    writer = receiver.stream().writeStream.format("parquet").option("path", table)
    query = receiver.start(writer, checkpoint=str(tmp_path / "checkpoint"))
    expected, feeds = [], []
    for revision, with_flags in flags.items():
        connector = feeders.connect(f"shop-{revision}", addresses(receiver), revision=revision)
        for name in (f"{revision}-north", f"{revision}-south"):
            keys = revision != "draft-le"
            feeds.append(feeders.feed(connector, orders(name, 150, keys=keys)))
            expected += expected_rows(f"shop-{revision}", name, 150, flags=with_flags, keys=keys)

    assert [feed.result(SECONDS).acknowledged for feed in feeds] == [1500] * 6
    query.stop()

    found = spark.read.parquet(table)
    wanted = spark.createDataFrame(expected, ROW_DDL.rpartition(",")[0])
    assert [(field.name, field.dataType.simpleString()) for field in found.schema] == [
        tuple(column.strip().lower().split(" ")) for column in ROW_DDL.split(",")
    ]
    assert_df_equality(found.drop("received_at"), wanted, ignore_row_order=True, ignore_nullable=True)
    assert found.where("received_at > current_timestamp() - interval 1 hour").count() == 900


@pytest.mark.parametrize("include", [False, True])
def test_boundaries_are_rows_only_when_they_are_asked_for(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path, include: bool
) -> None:
    batches = Batches()
    rows = rows_of(spark, receiver, includeBoundaries=str(include).lower())
    receiver.start(rows.writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
    connector = feeders.connect(f"shop-{include}", addresses(receiver))
    stream = connector.open("lines")
    stream.send(b"one", id=1)
    stream.send_boundary(5)
    stream.send(b"two", id=6)
    connector.drain(SECONDS)

    found = [(row.message_id, row.value if row.value is None else bytes(row.value)) for row in batches.all]
    boundary = [(5, None)] if include else []
    assert found == [(1, b"one"), *boundary, (6, b"two")]


def test_rows_keep_the_order_of_their_stream_across_batches(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    batches = Batches()
    rows = rows_of(spark, receiver, maxOffsetsPerTrigger=70)
    receiver.start(rows.writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
    connectors = [feeders.connect(f"order-{number}", addresses(receiver)) for number in (1, 2)]
    names = [["a", "b"], ["c"]]
    feeds = [
        feeders.feed(connector, numbered(name, 1, 100))
        for connector, streams in zip(connectors, names, strict=True)
        for name in streams
    ]
    for feed in feeds:
        feed.result(SECONDS)

    assert len([number for number, found in batches.rows.items() if found]) > 3
    assert all(batches.values(name) == payloads(name, 1, 100) for name in "abc")


@pytest.mark.both
def test_nothing_is_acknowledged_that_no_commit_file_speaks_for(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Batches()
    checkpoint = tmp_path / "checkpoint"
    rows = rows_of(spark, receiver, maxOffsetsPerTrigger=20)
    receiver.start(rows.writeStream.foreachBatch(batches), checkpoint=str(checkpoint))
    connector = feeders.connect("careful", addresses(receiver))
    stream = connector.open("numbers")
    files = CheckpointFiles(str(checkpoint))

    def committed() -> int:
        done = files.progress("orders").committed
        found = done.references.get("careful", {}).get(str(stream.id), 0) if done else 0
        assert isinstance(found, int)
        return found

    def watch(until: int) -> None:
        while (acknowledged := stream.acknowledged or 0) < until:
            assert acknowledged <= committed()

    sending = feeders.run(lambda: [stream.send(b"x", id=number) for number in range(1, 101)])
    watch(100)
    sending.result(SECONDS)

    batches.hold(lambda number: True)
    for number in range(101, 121):
        stream.send(b"x", id=number)
    assert batches.entered.wait(SECONDS)
    rounds, find_workers = 0, Announcer.find_workers

    def counted(announcer: Announcer) -> None:
        nonlocal rounds
        find_workers(announcer)
        rounds += 1

    def four_rounds() -> bool:
        assert (stream.acknowledged, committed()) == (100, 100)
        return rounds >= 4

    # The held batch has read its rows and has its plan; several rounds of the announcer pass.
    monkeypatch.setattr(Announcer, "find_workers", counted)
    eventually(four_rounds)
    batches.go()
    watch(120)
    assert committed() == 120


def test_a_second_query_on_the_same_receiver_is_refused(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    query = receiver.start(receiver.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "first"))

    with pytest.raises(ConfigurationError, match="feeds a query already; stop it first, or use foreachBatch"):
        receiver.start(receiver.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "second"))

    assert query.isActive
    assert not (tmp_path / "second").exists()


def test_a_checkpoint_that_another_receiver_uses_is_refused(
    spark: SparkSession, receiver: Receiver, file_redis: EmbeddedRedis, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    query = receiver.start(receiver.stream().writeStream.format("noop"), checkpoint=str(checkpoint))
    with Receiver(spark, "invoices", workers=1, registry=file_redis.url, lease_seconds=0.5) as other:
        with pytest.raises(CheckpointError, match=r"is used by another query, of .*; stop that one, or use another"):
            other.start(other.stream().writeStream.format("noop"), checkpoint=f"file:{checkpoint}/")
        # The refused query holds no lock, so another checkpoint may be used at once.
        other.start(other.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "mine"))

    assert query.isActive
    assert receiver.status().query.checkpoint == f"file://{checkpoint}"


def test_a_name_in_use_is_refused(spark: SparkSession, receiver: Receiver, file_redis: EmbeddedRedis) -> None:
    second = Receiver(spark, "orders", workers=1, registry=file_redis.url, lease_seconds=0.5)

    with pytest.raises(ConfigurationError, match=r"'orders' runs in this program already; call stop\(\) of that one"):
        second.start()

    assert all(slot.answers for slot in receiver.status().slots)


def test_redis_may_be_emptied_while_messages_flow(
    spark: SparkSession, receiver: Receiver, file_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    batches = Batches()
    receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint"))
    workers = addresses(receiver)
    before = feeders.connect("before", workers)
    stream = before.open("steady")
    for number in range(1, 51):
        stream.send(f"steady {number}".encode(), id=number)
    # The source has found the workers by then; only that needs the registry.
    before.drain(SECONDS)
    file_redis.stop()
    for number in range(51, 101):
        stream.send(f"steady {number}".encode(), id=number)
    before.drain(SECONDS)
    later = feeders.connect("later", workers)
    waiting = feeders.feed(later, numbered("late", 1, 50))
    file_redis.start()
    waiting.result(SECONDS)
    for number in range(101, 151):
        stream.send(f"steady {number}".encode(), id=number)
    before.drain(SECONDS)

    assert batches.values("steady") == payloads("steady", 1, 150)
    assert batches.values("late") == payloads("late", 1, 50)
    eventually(lambda: [slot.state for slot in receiver.status().slots] == ["serving"] * 2)
    assert [slot.submissions for slot in receiver.status().slots] == [1, 1]


def test_the_status_tells_of_workers_and_query(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    receiver.start(receiver.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "checkpoint"))
    connector: BlockingConnector = feeders.connect("seen", addresses(receiver))
    connector.open("any").send(b"x", id=3)
    connector.drain(SECONDS)

    status = receiver.status()

    assert status.name == "orders"
    assert status.query.state == "running"
    assert status.query.committed_batch is not None
    assert status.query.watcher_error == ""
    assert "seen" in [one.name for one in status.instances]
    assert COOKIE not in str(status)
