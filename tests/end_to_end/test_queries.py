"""Ordinary queries of other shapes than one source to one sink: each is acknowledged, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered, payloads, rows_of
from tests.waiting import SECONDS
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.usefixtures("no_query_left")


@pytest.fixture(scope="module")
def receiver(spark: SparkSession, file_redis: EmbeddedRedis) -> Iterator[Receiver]:
    """One running receiver for the tests of this file; each brings its own checkpoint, instances and streams."""
    with Receiver(spark, "orders", workers=1, cookie=COOKIE, registry=file_redis.url, lease_seconds=3) as started:
        yield started


def halves(rows: DataFrame) -> DataFrame:
    return rows.where("message_id % 2 = 0").union(rows.where("message_id % 2 = 1"))


def itself(rows: DataFrame) -> DataFrame:
    return rows.union(rows)


@pytest.mark.parametrize(("shape", "copies"), [pytest.param(halves, 1, marks=pytest.mark.long), (itself, 2)])
def test_a_stream_that_is_united_with_itself_is_acknowledged(
    receiver: Receiver, feeders: Feeders, tmp_path: Path, shape: type, copies: int
) -> None:
    batches = Batches()
    receiver.start(shape(receiver.stream()).writeStream.foreachBatch(batches), checkpoint=str(tmp_path))
    name = shape.__name__
    feed = feeders.feed(feeders.connect(name, addresses(receiver)), numbered(name, 1, 50))

    assert feed.result(SECONDS).acknowledged == 50
    assert sorted(batches.values(name)) == sorted(payloads(name, 1, 50) * copies)


@pytest.mark.parametrize("limit", [pytest.param(None, marks=pytest.mark.long), 7])
def test_a_stream_that_is_joined_with_itself_is_acknowledged_through_a_restart(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path, limit: int | None
) -> None:
    name = f"joined-{limit}"
    rows = receiver.stream() if limit is None else rows_of(spark, receiver, maxOffsetsPerTrigger=limit)
    left, right = (rows.where(f"instance = '{name}'").alias(side) for side in ("left", "right"))
    joined = left.join(right, sf.expr("left.message_id = right.message_id")).select("left.*")
    batches = Batches()
    query = receiver.start(joined.writeStream.foreachBatch(batches), checkpoint=str(tmp_path))
    connector = feeders.connect(name, addresses(receiver))
    stream = connector.open(name)
    for number in range(1, 31):
        stream.send(f"{name} {number}".encode(), id=number)
    connector.drain(SECONDS)
    query.stop()
    receiver.start(joined.writeStream.foreachBatch(batches), checkpoint=str(tmp_path))
    for number in range(31, 61):
        stream.send(f"{name} {number}".encode(), id=number)
    connector.drain(SECONDS)

    assert sorted(batches.values(name)) == sorted(payloads(name, 1, 60))
    plans = [file.read_text().splitlines()[2:] for file in tmp_path.glob("offsets/[0-9]*")]
    assert plans
    assert all(len(plan) == 2 and plan[0] == plan[1] for plan in plans)


@pytest.mark.long
def test_a_stream_that_is_joined_with_itself_reads_all_available_messages(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    rows = rows_of(spark, receiver, maxOffsetsPerTrigger=20, quietSeconds="2s").where("instance = 'to-the-end'")
    joined = rows.alias("left").join(rows.alias("right"), sf.expr("left.message_id = right.message_id"))
    batches = Batches()
    write = joined.select("left.*").writeStream.trigger(availableNow=True).foreachBatch(batches)
    query = receiver.start(write, checkpoint=str(tmp_path))
    feed = feeders.feed(feeders.connect("to-the-end", addresses(receiver)), numbered("to-the-end", 1, 100))

    assert query.awaitTermination(int(SECONDS))
    assert feed.result(SECONDS).acknowledged == 100
    assert sorted(batches.values("to-the-end")) == sorted(payloads("to-the-end", 1, 100))


def test_a_query_of_two_receivers_acknowledges_to_the_connectors_of_both(
    spark: SparkSession, receiver: Receiver, file_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    with Receiver(spark, "returns", workers=1, cookie=COOKIE, registry=file_redis.url, lease_seconds=3) as returns:
        batches = Batches()
        both = receiver.stream().union(returns.stream())
        query = receiver.start(both.writeStream.foreachBatch(batches), checkpoint=str(tmp_path))
        feeds = [
            feeders.feed(feeders.connect(f"both-{one.name}", addresses(one)), numbered(f"both-{one.name}", 1, 30))
            for one in (receiver, returns)
        ]
        assert [feed.result(SECONDS).acknowledged for feed in feeds] == [30, 30]
        with pytest.raises(ConfigurationError, match="receiver 'returns' feeds a query already"):
            returns.start(returns.stream().writeStream.format("noop"), checkpoint=str(tmp_path / "other"))
        query.stop()
        query = returns.start(both.writeStream.foreachBatch(batches), checkpoint=str(tmp_path))
        later = feeders.feed(feeders.connect("later", addresses(receiver)), numbered("later", 1, 10))
        assert later.result(SECONDS).acknowledged == 10
        for name in ("both-orders", "both-returns"):
            assert batches.values(name) == payloads(name, 1, 30)
    assert not query.isActive
    with pytest.raises(ConfigurationError, match="also reads receiver 'returns', which this program does not run"):
        receiver.start(both.writeStream.foreachBatch(batches), checkpoint=str(tmp_path))


def test_a_query_that_does_not_read_the_receiver_is_refused(
    spark: SparkSession, receiver: Receiver, tmp_path: Path
) -> None:
    rates = spark.readStream.format("rate").load()
    with pytest.raises(
        ConfigurationError, match="does not read receiver 'orders', it reads none; build it on the DataFrame"
    ):
        receiver.start(rates.writeStream.format("noop"), checkpoint=str(tmp_path))


def test_the_trigger_once_is_refused_with_the_way_out(receiver: Receiver, tmp_path: Path) -> None:
    writer = receiver.stream().writeStream.format("noop").trigger(once=True)
    with pytest.raises(ConfigurationError, match=r"the trigger Once .* use \.trigger\(availableNow=True\)"):
        receiver.start(writer, checkpoint=str(tmp_path))


def test_the_checkpoint_of_a_receiver_of_another_name_is_refused(
    spark: SparkSession, receiver: Receiver, file_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    query = receiver.start(receiver.stream().writeStream.format("noop"), checkpoint=str(tmp_path))
    feeders.feed(feeders.connect("renamed", addresses(receiver)), numbered("renamed", 1, 5)).result(SECONDS)
    query.stop()
    assert CheckpointFiles(str(tmp_path)).receivers() == ("orders",)

    with Receiver(spark, "bestellungen", workers=1, cookie=COOKIE, registry=file_redis.url) as renamed:
        with pytest.raises(CheckpointError) as refused:
            renamed.start(renamed.stream().writeStream.format("noop"), checkpoint=str(tmp_path))
        assert "is of receiver 'orders', but this query reads 'bestellungen'" in refused.value.message
