"""A driver whose checkpoint is elsewhere than on this machine's disk, as a process that a test kills.

    python driver.py DIRECTORY PORT CHECKPOINT REDIS SETTINGS

It runs a receiver with one worker on PORT. Its batches go to the Redis stream ``orders``, prepared beside the
checkpoint. SETTINGS are Spark's, as JSON. It ends in good order when its standard input does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.conftest import LOCAL_SPARK
from tests.receiver.support import COOKIE
from wallaroo_spark import Receiver, sinks


def main(directory: Path, port: int, checkpoint: str, redis: str, settings: dict[str, str]) -> None:
    """Run until standard input ends."""
    builder = SparkSession.builder.master("local[3,4]").appName("a driver with a checkpoint elsewhere")
    for name, value in {**LOCAL_SPARK, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", f"file://{directory}/warehouse").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    deliver = sinks.redis(redis, checkpoint=checkpoint, name="entries", stream="orders")

    def write(frame: DataFrame, number: int) -> None:
        deliver(frame.selectExpr("cast(value as string) value"), number)

    options = {"workers": 1, "port": port, "cookie": COOKIE, "lease_seconds": 3}
    with Receiver(spark, "orders", max_offsets_per_trigger=50, **options) as receiver:
        query = receiver.start(receiver.stream().writeStream.foreachBatch(write), checkpoint=checkpoint)
        print("checkpoint", receiver.status().query.checkpoint, flush=True)
        sys.stdin.read()
        assert query.exception() is None, query.exception()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
