"""A driver on a cluster that adopts a query while an executor with a worker dies: spark-submit, with a DIRECTORY.

It prints, as JSON, the acknowledged reference and the committed payloads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from tests.receiver.support import COOKIE, Feeders, numbered
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.receiver.spark_queries import RunningQuery

MESSAGES = 400


class Dying(Receiver):
    """A receiver that loses the executor of its first worker when it is about to adopt its first query."""

    killed = 0

    def _adopt(self, query: RunningQuery) -> bool:
        if not self.killed:
            worker = next(slot.pid for slot in self.status().slots if slot.slot == 0)
            executor = next(one for one in psutil.Process(worker).parents() if one.name() == "java")
            self.killed = executor.pid
            executor.send_signal(signal.SIGKILL)
            executor.wait(60)
        return super()._adopt(query)


def main(directory: Path) -> None:
    """Send before the query starts, and go on while the executor dies."""
    spark = SparkSession.builder.getOrCreate()
    registry = os.environ["WALLAROO_REGISTRY"]
    options = {"workers": 2, "registry": registry, "cookie": COOKIE, "lease_seconds": 3}
    with Dying(spark, "orders", **options) as receiver, Feeders() as feeders:
        fed = [
            feeders.feed(feeders.connect(f"shop-{number}", registry=registry), numbered(f"s{number}", 1, MESSAGES))
            for number in range(4)
        ]
        write = receiver.stream().writeStream.format("parquet").option("path", str(directory / "rows"))
        query = write.option("checkpointLocation", str(directory / "checkpoint")).start()
        acknowledged = [one.result(150).acknowledged for one in fed]
        found = receiver.status().query
        assert (found.id, found.state) == (query.id, "running")
        assert receiver.killed
    rows = spark.read.parquet(str(directory / "rows")).orderBy("stream", "message_id").collect()
    print(json.dumps({"acknowledged": acknowledged, "rows": [[row.stream, row.message_id] for row in rows]}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
