"""Queries that Spark's own ``.start()`` began: a receiver adopts them, or they fail with the reason and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered, payloads, rows_of
from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.sidecar import task_access

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.usefixtures("no_query_left")


@pytest.fixture(scope="module")
def receiver(spark: SparkSession, file_redis: EmbeddedRedis) -> Iterator[Receiver]:
    """One running receiver for the tests of this file; each brings its own checkpoint, instances and streams."""
    with Receiver(spark, "orders", workers=1, cookie=COOKIE, registry=file_redis.url, lease_seconds=3) as started:
        yield started


def started(rows: DataFrame, sink: Any, checkpoint: Path) -> StreamingQuery:
    """The query as everybody who knows Spark starts it."""
    return rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint)).start()


def why_it_fails(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(int(SECONDS))
    return str(failed.value)


@pytest.mark.both
def test_a_query_goes_on_whoever_starts_it_again(receiver: Receiver, feeders: Feeders, tmp_path: Path) -> None:
    batches, rows = Batches(), receiver.stream()
    connector = feeders.connect("again", addresses(receiver))
    # The last one is a cell that is run again: Spark stops the query that runs.
    ways: list[Callable[[], StreamingQuery]] = [
        lambda: started(rows, batches, tmp_path),
        lambda: receiver.start_query(rows.writeStream.foreachBatch(batches), checkpoint=str(tmp_path)),
        lambda: started(rows, batches, tmp_path),
        lambda: started(rows, batches, tmp_path),
    ]
    for turn, way in enumerate(ways):
        query = way()
        assert feeders.feed(connector, numbered("numbers", 1, 10 + 10 * turn), end=False).result(SECONDS).acknowledged
        status = receiver.status().query
        assert (status.id, status.state) == (query.id, "running")
        if turn != 2:
            query.stop()

    assert batches.values("numbers") == payloads("numbers", 1, 40)


def test_another_checkpoint_gets_all_messages_again_at_once(
    receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    first, second, rows = Batches(), Batches(), receiver.stream()
    connector = feeders.connect("anew", addresses(receiver))
    query = started(rows, first, tmp_path / "first")
    feeders.feed(connector, numbered("anew", 1, 20), end=False).result(SECONDS)
    query.stop()
    query = started(rows, second, tmp_path / "second")
    feeders.feed(connector, numbered("anew", 1, 30), end=False).result(SECONDS)

    assert query.isActive
    assert first.values("anew") == payloads("anew", 1, 20)
    assert second.values("anew") == payloads("anew", 1, 30)


def test_a_query_in_another_session_that_names_the_format_in_sql_is_adopted(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    other, batches = spark.newSession(), Batches()
    rows_of(other, receiver, maxOffsetsPerTrigger=7).createOrReplaceTempView("orders")
    query = started(other.sql("SELECT * FROM orders WHERE value IS NOT NULL"), batches, tmp_path)
    try:
        feed = feeders.feed(feeders.connect("elsewhere", addresses(receiver)), numbered("elsewhere", 1, 30))
        assert feed.result(SECONDS).acknowledged == 30
    finally:
        query.stop()

    assert batches.values("elsewhere") == payloads("elsewhere", 1, 30)
    assert max(map(len, batches.rows.values())) <= 7


def test_the_last_batch_of_a_query_that_ends_by_itself_is_acknowledged(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    rows = rows_of(spark, receiver, quietSeconds="2s", maxOffsetsPerTrigger=20)
    write = rows.writeStream.trigger(availableNow=True).format("parquet").option("path", str(table))
    query = write.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    feed = feeders.feed(feeders.connect("to-the-end", addresses(receiver)), numbered("to-the-end", 1, 50))

    assert query.awaitTermination(int(SECONDS))
    assert feed.result(SECONDS).acknowledged == 50
    assert spark.read.parquet(str(table)).where("stream = 'to-the-end'").count() == 50


@pytest.mark.long
def test_a_query_of_two_receivers_is_followed_by_both(
    spark: SparkSession, receiver: Receiver, file_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    with Receiver(spark, "returns", workers=1, cookie=COOKIE, registry=file_redis.url, lease_seconds=3) as returns:
        batches, both = Batches(), receiver.stream().union(returns.stream())
        for turn in (1, 2):
            query = started(both, batches, tmp_path)
            feeds = [
                feeders.feed(feeders.connect(f"{turn}-{one.name}", addresses(one)), numbered(f"of-{one.name}", 1, 30))
                for one in (receiver, returns)
            ]
            assert [feed.result(SECONDS).acknowledged for feed in feeds] == [30, 30]
            query.stop()
        for one in (receiver, returns):
            assert batches.values(f"of-{one.name}") == payloads(f"of-{one.name}", 1, 30) * 2
    reason = why_it_fails(started(both, batches, tmp_path))
    assert "also reads receiver 'returns', which this program does not run" in reason


def without_a_checkpoint(write: DataStreamWriter, place: Path) -> DataStreamWriter:
    return write.format("memory").queryName("forgetful")


def asynchronously(write: DataStreamWriter, place: Path) -> DataStreamWriter:
    return with_a_checkpoint(write.option("asyncProgressTrackingEnabled", "true"), place)


def once(write: DataStreamWriter, place: Path) -> DataStreamWriter:
    return with_a_checkpoint(write.trigger(once=True), place)


def of_another_receiver(write: DataStreamWriter, place: Path) -> DataStreamWriter:
    for log in ("offsets", "commits"):
        (place / log).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"0b4ab7a0-1f0a-4f0c-8f0e-6f7a6d1d2b11"}')
    batch = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    streams = '{"wallaroo":1,"receiver":"bestellungen","streams":{}}'
    (place / "offsets" / "0").write_text(f"v1\n{batch}\n{streams}")
    (place / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return with_a_checkpoint(write, place)


def with_a_checkpoint(write: DataStreamWriter, place: Path) -> DataStreamWriter:
    return write.format("noop").option("checkpointLocation", str(place))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (without_a_checkpoint, r"\(forgetful\) was not adopted: it has no checkpoint of its own.*'checkpointLocation'"),
        (asynchronously, "was not adopted: with asyncProgressTrackingEnabled .*; remove the option"),
        pytest.param(
            once, r"was not adopted: the trigger Once .* use \.trigger\(availableNow=True\)", marks=pytest.mark.long
        ),
        (of_another_receiver, "is of receiver 'bestellungen', but this query reads 'orders'"),
    ],
    ids=["no checkpoint", "asynchronous", "once", "another receiver's checkpoint"],
)
def test_what_cannot_be_adopted_fails_with_the_reason_and_a_remedy(
    receiver: Receiver, tmp_path: Path, write: Callable[..., Any], reason: str
) -> None:
    query = write(receiver.stream().writeStream, tmp_path / "checkpoint").start()
    text = why_it_fails(query)

    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(text.replace("\n", " "))
    assert "receiver 'orders' does not feed this query, so no message would ever be acknowledged" in text
    assert "start it with receiver.start_query(rows.writeStream" in text
    eventually(lambda: receiver.status().query.state in ("none", "stopped", "failed"))
    # The refused query is gone, and the next one is adopted.
    sound = started(receiver.stream(), Batches(), tmp_path / "sound")
    eventually(lambda: receiver.status().query.id == sound.id and receiver.status().query.state == "running")


def test_a_disk_that_the_machines_of_a_cluster_do_not_share_is_not_adopted_and_left_unlocked(
    receiver: Receiver, feeders: Feeders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, checkpoint = Batches(), tmp_path / "checkpoint"
    with monkeypatch.context() as on:
        # As executors on other machines see it: the same path, another disk.
        on.setattr(task_access, "on_one_machine", lambda master: False)
        on.setattr(task_access, "for_tasks", lambda location, session: str(tmp_path / "another disk"))
        text = why_it_fails(started(receiver.stream(), batches, checkpoint)).replace("\n", " ")
        assert f"was not adopted: receiver 'orders' needs file://{checkpoint}" in text
        assert "give a location that all machines share" in text
        assert receiver.status().query.state in ("none", "stopped", "failed")
    assert batches.all == []
    assert not any((checkpoint / "commits").iterdir())

    # The folder is refused for where it is, and has no trace of that: the machines share it now.
    query = started(receiver.stream(), batches, checkpoint)
    feeders.feed(feeders.connect("shared", addresses(receiver)), numbered("shared", 1, 5)).result(SECONDS)
    assert batches.values("shared") == payloads("shared", 1, 5)
    assert receiver.status().query.id == query.id


def test_a_second_query_fails_and_the_first_goes_on(receiver: Receiver, feeders: Feeders, tmp_path: Path) -> None:
    first, second = Batches(), Batches()
    query = started(receiver.stream(), first, tmp_path / "first")
    feeders.feed(feeders.connect("one", addresses(receiver)), numbered("one", 1, 5)).result(SECONDS)
    other = started(receiver.stream(), second, tmp_path / "second")
    text = why_it_fails(other)
    feeders.feed(feeders.connect("two", addresses(receiver)), numbered("two", 1, 5)).result(SECONDS)

    assert f"the receiver feeds query {query.id}, not {other.id}: stop that one first" in text
    assert second.all == []
    assert first.values("one") + first.values("two") == payloads("one", 1, 5) + payloads("two", 1, 5)
    with pytest.raises(ConfigurationError, match="receiver 'orders' feeds a query already"):
        receiver.start_query(receiver.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "third"))


def test_a_receiver_with_fsync_starts_its_query_itself(spark: SparkSession, tmp_path: Path) -> None:
    with Receiver(spark, "safe", workers=1, fsync=True) as safe:
        text = why_it_fails(started(safe.stream(), Batches(), tmp_path))
        assert "with the option fsync the receiver has to check the files of the checkpoint" in text
        assert safe.start_query(safe.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "other")).isActive


def test_a_query_before_its_receiver_says_that_the_receiver_is_missing_and_a_later_one_is_adopted(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    rows = spark.newSession().readStream.format("wallaroo").option("receiver", "late").load()
    early = started(rows, Batches(), tmp_path)
    assert "receiver 'late' was not started by this driver; start it with Receiver(" in why_it_fails(early)

    batches = Batches()
    with Receiver(spark, "late", workers=1, cookie=COOKIE) as late:
        query = started(rows, batches, tmp_path)
        feeders.feed(feeders.connect("late", addresses(late)), numbered("late", 1, 5)).result(SECONDS)
        assert query.isActive
    assert not query.isActive
    with late:
        # The rows of the session that knows only the name are those of the receiver that runs now.
        query = started(rows, batches, tmp_path)
        feeders.feed(feeders.connect("later", addresses(late)), numbered("late", 1, 5)).result(SECONDS)
    assert batches.values("late") == payloads("late", 1, 5) * 2
