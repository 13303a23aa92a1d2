"""Instances a second of a function in Spark: ``python -m proving.pipelines.operator_speed``.

Batches of published records are compared with bare batches of one record a key, in one query of one local Spark.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from wallaroo_spark.cli.sessions import LOG4J, THIS_MACHINE, log_to
from wallaroo_spark.engine.operator.processor import run_keys
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.declarations import StartPoint
from wallaroo_spark.streams.rows import INPUT, Rank

EVENTS = "stream string, partition int, rank int, origin string, sequence bigint, place int, event binary"
ROUNDS = 4
STREAM = "shop/orders"


def upper(rows: pd.DataFrame) -> pd.Series[Any]:
    """The measured stage: the data of the root event in capitals."""
    return rows["root_event"].map(lambda event: event["data"].upper())


class Feed:
    """Files of events that a query reads."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, 0
        (folder / "events").mkdir()

    def write(self, events: Sequence[tuple[int, e.Event]]) -> None:
        """One file: partition and event of each row."""
        self.files += 1
        rows = [
            (STREAM, partition, Rank.RECEIVED.value, "g0/1", self.files, place, encode(event))
            for place, (partition, event) in enumerate(events)
        ]
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), INPUT, strict=True)]
        path = self.folder / f"{self.files}.parquet"
        pq.write_table(pa.Table.from_arrays(columns, schema=INPUT), path)
        path.rename(self.folder / "events" / path.name)

    def publish(self, records: int, keys: int) -> None:
        """Each record is a request of its own."""
        reply, data = ReplyTo("driver", 1, 1), b"x" * 100
        name = f"{self.files}"
        self.write(
            [
                (n % keys, e.RecordsPublished(reply, (CloudEvent(f"{name}-{n}", "speed", "order.created", data),)))
                for n in range(records)
            ]
        )


def main() -> None:
    """Measure, and print a line for each kind of batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000, help="records of a batch")
    parser.add_argument("--keys", type=int, default=4, help="partitions of the stream")
    parser.add_argument("--most", type=int, default=50, help="maxParallel")
    given = parser.parse_args()
    # The worker of the driver asks the environment for its Python, not Spark's configuration.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    settings = {
        **THIS_MACHINE,
        **log_to(LOG4J),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("operator speed")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        _measure(spark, Path(name), given.records, given.keys, given.most)
    spark.stop()


def _measure(spark: Any, folder: Path, records: int, keys: int, most: int) -> None:
    feed = Feed(folder)
    stage = StagePlan("upper", given_root=True, function="proving.pipelines.operator_speed:upper")
    beginning = StartPoint(location="beginning")
    plan = PartitionPlan((PipelinePlan("shop/speed", (stage,), max_parallel=most, start=beginning),))
    feed.write([(key, e.PartitionDeclared(1, plan)) for key in range(keys)])
    source = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).parquet(str(folder / "events"))
    query = (
        run_keys(source, str(folder))
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    bare: list[int] = []
    full: list[int] = []
    try:
        query.processAllAvailable()
        for _ in range(ROUNDS):
            for size, times in ((keys, bare), (records, full)):
                feed.publish(size, keys)
                query.processAllAvailable()
                times.append(_last_batch(query))
    finally:
        query.stop()
    # The first ones start processes.
    least_bare, least_full = min(bare[1:]), min(full[1:])
    print(f"bare batch of {keys} records: {least_bare} ms ({bare})")
    print(f"batch of {records} records, maxParallel {most}: {least_full} ms ({full})")
    rate = records * 1000 / least_full
    print(f"{least_full / least_bare:.1f} bare batches; {rate:,.0f} instances a second")


def _last_batch(query: Any) -> int:
    """Milliseconds of the last batch with rows."""
    found = [one for one in query.recentProgress if one["numInputRows"]]
    return int(found[-1]["durationMs"]["triggerExecution"])


if __name__ == "__main__":
    main()
