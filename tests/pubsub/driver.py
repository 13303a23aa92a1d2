"""A driver as a process of its own, for tests that kill it and its tasks.

    python -m tests.pubsub.driver DIRECTORY PORT REGISTRY

It receives orders with two workers on PORT and PORT + 1, adds them up batch by batch, and publishes the totals on the
topic ``totals`` of two partitions. What batch N came to is also in ``DIRECTORY/totals/N.json``, in place of what was
there. The driver ends in good order, and the topic for good, when its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.conftest import LOCAL_SPARK
from tests.pubsub.running import COOKIE, TOPIC
from wallaroo_spark import Receiver
from wallaroo_spark.pubsub import Topic, publish

PAD_BYTES = 500_000
"""Additional bytes in each row, so that a subscriber can be slow."""


def main(directory: Path, port: int, registry: str) -> None:
    """Run until standard input ends."""
    builder = SparkSession.builder.master("local[8,4]").appName("a driver that publishes")
    for name, value in LOCAL_SPARK.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    written, checkpoint = directory / "totals", str(directory / "checkpoint")
    written.mkdir(exist_ok=True)

    def each(frame: DataFrame, number: int) -> None:
        amounts = frame.selectExpr("instance", "CAST(CAST(value AS STRING) AS BIGINT) AS amount").groupBy("instance")
        totals = amounts.agg({"amount": "sum", "*": "count"}).toDF("instance", "total", "orders").persist()
        draft = written / f".{number}"
        draft.write_text(json.dumps(sorted([row.instance, row.total, row.orders] for row in totals.collect())))
        os.replace(draft, written / f"{number}.json")
        publish(totals.selectExpr("*", f"repeat('x', {PAD_BYTES}) AS pad").repartition(4), TOPIC)
        totals.unpersist()

    shared: dict[str, Any] = {"registry": registry, "cookie": COOKIE, "lease_seconds": 2}
    with (
        Receiver(spark, "orders", workers=2, port=port, max_offsets_per_trigger=40, **shared) as receiver,
        Topic(spark, TOPIC, checkpoint=checkpoint, partitions=2, max_subscriber_bytes=8_000_000, **shared),
    ):
        query = receiver.start(receiver.stream().writeStream.foreachBatch(each), checkpoint=checkpoint)
        sys.stdin.read()
        query.stop()
        assert query.exception() is None, query.exception()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
