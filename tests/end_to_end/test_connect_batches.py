"""foreachBatch of Spark Connect's clients: the function runs beside the server, with a session of the batch's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.errors.exceptions.connect import SparkException

from tests.receiver.support import COOKIE, Feeders, addresses, numbered, payloads
from tests.waiting import SECONDS
from wallaroo_spark import sinks
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Client

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("no_query_left")]

TRIES = 5


@pytest.fixture(scope="module")
def receiver(spark: SparkSession, file_redis: EmbeddedRedis) -> Iterator[Receiver]:
    """One running receiver for the tests of this file, in the driver of the server."""
    with Receiver(spark, "orders", workers=1, cookie=COOKIE, registry=file_redis.url, lease_seconds=3) as started:
        yield started


@pytest.fixture(scope="module")
def client(spark: SparkSession, receiver: Receiver) -> Iterator[Client]:
    """A client of a Connect server in the driver of the run's session, with which the server ends."""
    from pyspark.sql.connect.session import SparkSession

    assert spark._jvm is not None
    service = getattr(getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    started = SparkSession.builder.remote(f"sc://127.0.0.1:{service.localPort()}").create()
    yield started
    started.stop()


def started(client: Client, function: Any, checkpoint: Path) -> Any:
    """A query with the function. Spark gives the function's process ten seconds to start, too few on a busy machine."""
    rows = client.readStream.format("wallaroo").option("receiver", "orders").load()
    write = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    for _ in range(TRIES):
        with contextlib.suppress(SparkException):
            return write.start()
    return write.start()


def values(client: Client, table: Path) -> list[bytes]:
    return [bytes(row.value) for row in client.read.parquet(str(table)).orderBy("message_id").collect()]


def test_a_batch_is_joined_with_frames_and_views_of_its_own_session(
    client: Client, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")

    def each(batch: Any, number: int) -> None:
        session = batch.sparkSession
        batch.createOrReplaceTempView("incoming")
        kept = session.range(0, 100, 2).withColumnRenamed("id", "message_id")
        session.sql("SELECT message_id, value FROM incoming").join(kept, "message_id").write.mode("append").parquet(
            table
        )

    query = started(client, each, tmp_path / "checkpoint")
    fed = feeders.feed(feeders.connect("joins", addresses(receiver)), numbered("joins", 1, 20)).result(SECONDS)
    query.stop()

    assert fed.acknowledged
    assert values(client, tmp_path / "table") == payloads("joins", 1, 20)[1::2]


def test_a_batch_that_fails_is_not_acknowledged_and_the_next_query_has_its_rows(
    client: Client, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")

    def fails(batch: Any, number: int) -> None:
        if batch.count():
            raise ValueError("not today")

    def each(batch: Any, number: int) -> None:
        batch.select("message_id", "value").write.mode("append").parquet(table)

    fed = feeders.feed(feeders.connect("fails", addresses(receiver)), numbered("fails", 1, 20))
    with pytest.raises(StreamingQueryException, match="not today"):
        started(client, fails, tmp_path / "checkpoint").awaitTermination(int(SECONDS))
    assert not fed.done()
    query = started(client, each, tmp_path / "checkpoint")
    assert fed.result(SECONDS).acknowledged
    query.stop()

    assert values(client, tmp_path / "table") == payloads("fails", 1, 20)


def test_a_transactional_sink_writes_the_batches_of_a_client(
    client: Client, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    write = sinks.files(str(tmp_path / "table"), name="files", checkpoint=checkpoint)
    query = started(client, write, tmp_path / "checkpoint")
    fed = feeders.feed(feeders.connect("sinks", addresses(receiver)), numbered("sinks", 1, 20)).result(SECONDS)
    query.stop()

    assert fed.acknowledged
    assert values(client, tmp_path / "table") == payloads("sinks", 1, 20)
