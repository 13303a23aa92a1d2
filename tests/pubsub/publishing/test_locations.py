"""A topic belongs to the checkpoint of the query that publishes on it, wherever Spark's settings say that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.elsewhere import Elsewhere
from wallaroo_spark.pubsub import Topic, publish, subscribe
from wallaroo_spark.pubsub.times import Frontier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def running(spark: SparkSession, write: Callable[[DataFrame, int], None], checkpoint: str) -> Iterator[Any]:
    """A query with a row a second."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    try:
        yield query
    finally:
        query.stop()


def test_published_files_are_on_sparks_default_file_system_and_publishers_find_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    elsewhere = Elsewhere(spark, tmp_path)
    with (
        Topic(elsewhere.spark, "totals", checkpoint="/data/checkpoint") as topic,
        running(elsewhere.spark, lambda rows, _: publish(rows.select("value"), topic), "/data/checkpoint"),
        subscribe("totals", registry=topic.registry_url, wait=60, lost_after=60) as subscription,
    ):
        values: list[int] = []
        for item in subscription:
            if hasattr(item, "batch"):
                values += item.batch["value"].to_pylist()
            # Only then all parts of an epoch have arrived.
            elif isinstance(item, Frontier) and len(values) >= 10:
                break
    assert sorted(values) == list(range(min(values), min(values) + len(values)))
    assert (tmp_path / "data/checkpoint/_wallaroo/topics/totals/topic.json").exists()
    assert not Path("/data").exists()


def test_a_query_with_another_checkpoint_than_the_topics_cannot_publish_on_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    ours, other = str(tmp_path / "ours"), str(tmp_path / "other")
    told: list[str] = []

    def write(rows: DataFrame, batch: int) -> None:
        try:
            publish(rows.select("value"), topic)
        except Exception as error:
            told.append(str(error))
            raise

    with Topic(spark, "totals", checkpoint=ours) as topic, running(spark, write, other) as query:
        with pytest.raises(Exception, match="start the topic with the checkpoint= of the query"):
            assert query.awaitTermination(120)
        assert told[0].startswith(
            f"topic 'totals' has the checkpoint file://{ours}, which is of no query, and batch 0 "
        )
        assert str(query.id) in told[0]
        with (
            running(spark, lambda rows, _: None, ours) as first,
            running(spark, write, other) as second,
            pytest.raises(
                Exception, match=f"which is of the query {first.id}, and batch 0 is of the query {second.id}"
            ),
        ):
            assert second.awaitTermination(120)
