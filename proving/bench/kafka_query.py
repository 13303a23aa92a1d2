"""A query of Spark's Kafka source into noop: ``python -m proving.bench.kafka_query JSON``, with a PySpark on the path.

It prints a line of JSON when the query runs, and then, five times a second, how many rows its batches have read so far.
It ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

LOOK_SECONDS = 0.2


def run(jars: str, bootstrap: str, topic: str, checkpoint: str, settings: dict[str, str]) -> None:
    """Run the query until standard input ends."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("Kafka").config("spark.jars", jars)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**options).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    say({"query": str(query.id)})
    read, newest = 0, -1
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        for progress in query.recentProgress:
            if progress["batchId"] > newest:
                newest = progress["batchId"]
                read += progress["numInputRows"]
        say({"at": time.monotonic(), "rows": read})
    query.stop()
    spark.stop()


def say(found: dict[str, Any]) -> None:
    """A line for the bench."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
