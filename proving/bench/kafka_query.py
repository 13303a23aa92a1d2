"""A query of Spark's Kafka source into noop: ``python -m proving.bench.kafka_query JSON``, with a PySpark on the path.

It prints a line of JSON when the query runs, and then, five times a second, how many rows all its batches have read so
far, and how many its last one. It ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

LOOK_SECONDS = 0.2


def run(jars: str, bootstrap: str, topic: str, checkpoint: str, settings: dict[str, str], **pace: Any) -> None:
    """Run the query until standard input ends.

    ``pace`` has ``trigger_seconds``, the interval of the batches, and ``most_rows``, the limit of a batch; 0 is none.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("Kafka").config("spark.jars", jars)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    if pace["most_rows"]:
        options["maxOffsetsPerTrigger"] = str(pace["most_rows"])
    rows = spark.readStream.format("kafka").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    if pace["trigger_seconds"]:
        writer = writer.trigger(processingTime=f"{pace['trigger_seconds']} seconds")
    query = writer.start()
    say({"query": str(query.id)})
    read, last, newest = 0, 0, -1
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        for progress in query.recentProgress:
            if progress["batchId"] > newest:
                newest = progress["batchId"]
                last = progress["numInputRows"]
                read += last
        say({"at": time.monotonic(), "rows": read, "batch": newest, "last": last})
    query.stop()
    spark.stop()


def say(found: dict[str, Any]) -> None:
    """A line for the bench."""
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
