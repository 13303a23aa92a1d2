"""A query that keeps two batches of its logs, as a process that a test kills while Spark removes the others.

python purging.py DIRECTORY PORT CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.conftest import LOCAL_SPARK

KEEP = {"spark.sql.streaming.minBatchesToRetain": "2"}


def main(directory: Path, checkpoint: str) -> None:
    """Run until killed, or until standard input ends."""
    builder = SparkSession.builder.master("local[2]").appName("a query whose logs are purged")
    for name, value in {**LOCAL_SPARK, **KEEP}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    sys.stdin.read()
    query.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3])
