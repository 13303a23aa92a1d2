"""A driver of an application as a process of its own: ``python -m tests.engine.sweep.driver FOLDER URL``.

It begins when a line comes on its standard input, and ends in good order when that ends. When its application fails, it
ends with the error, and the next driver takes over.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from tests.conftest import LOCAL_SPARK
from tests.engine.sweep.points import be_mortal


def main(folder: Path, registry: str) -> None:
    """Run until standard input ends."""
    be_mortal()
    from pyspark.sql import SparkSession

    from wallaroo_spark.engine import Application

    builder = SparkSession.builder.master("local[5,4]").appName("a driver of the sweep")
    for name, value in LOCAL_SPARK.items():
        builder = builder.config(name, value)
    # Few batches are kept, so that files are deleted.
    builder = builder.config("spark.sql.streaming.minBatchesToRetain", "2")
    spark = builder.config("spark.sql.warehouse.dir", str(folder.with_name("warehouse"))).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Starting Java takes longest, and may be done before a driver is needed.
    if not sys.stdin.readline():
        return
    settings: dict[str, Any] = {
        "lease_seconds": 3,
        "state_partitions": 2,
        "move_seconds": 0.3,
        "retention_seconds": 1,
        "keep": 2,
    }
    with Application(spark, str(folder), registry=registry, **settings) as application:
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while not ended.wait(0.1):
            application.await_end(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
