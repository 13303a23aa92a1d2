"""The files of sinks are beside the checkpoint's location under Spark's settings, for driver and tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import redis

from tests.elsewhere import Elsewhere
from wallaroo_spark import sinks
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def orders(spark: SparkSession, folder: Path, numbers: range) -> DataFrame:
    """A stream of the numbers that files in a folder hold; these are added."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"number": number}) for number in numbers]
    (folder / f"{numbers.start}.json").write_text("\n".join(lines))
    return spark.readStream.schema("number bigint").json(folder.as_uri())


def run(rows: DataFrame, write: Any, checkpoint: str) -> None:
    """Deliver what there is."""
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    started = query.start()
    try:
        assert started.awaitTermination(240)
    finally:
        started.stop()


def test_decisions_stages_and_files_of_sinks_are_on_sparks_default_file_system(
    spark: SparkSession, tmp_path: Path
) -> None:
    elsewhere, checkpoint = Elsewhere(spark, tmp_path), "/data/checkpoint"
    with EmbeddedRedis() as server:
        files = sinks.files("/data/out", checkpoint=checkpoint, name="files")
        entries = sinks.redis(server.url, checkpoint=checkpoint, name="entries", stream="orders")

        def write(rows: DataFrame, batch: int) -> None:
            files(rows, batch)
            entries(rows, batch)

        for first in (0, 10):
            run(orders(elsewhere.spark, tmp_path / "in", range(first, first + 10)), write, checkpoint)
        found: Any = redis.Redis.from_url(server.url).xrange("orders")

    assert sorted(int(fields[b"number"]) for _, fields in found) == list(range(20))
    data = tmp_path / "data"
    assert sorted(pq.read_table(data / "out", partitioning=None)["number"].to_pylist()) == list(range(20))
    beside = data / "checkpoint/_wallaroo"
    assert (beside / "sinks/files/1.finished").exists()
    assert (beside / "sinks/entries/1.finished").exists()
    assert (beside / "stages/entries/identity").exists()
    assert not Path("/data").exists()
