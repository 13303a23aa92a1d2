"""A driver as a process of its own, for tests that kill it.

    python driver.py DIRECTORY PORT [RETENTION]

It runs a receiver with two workers on PORT and PORT + 1 and writes the rows of batch N to ``DIRECTORY/rows/N.json``, in
place of what was there. RETENTION is its ``streamRetention`` in seconds. With the variable that BY_SPARK names, Spark's
own ``.start()`` starts the query, and not the receiver. With the variable that STANDBY names, a registry's URL, it is a
standby while another driver runs.

It begins when a line comes on its standard input, and ends in good order when that ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tests.conftest import LOCAL_SPARK
from tests.crash.deaths import be_mortal
from tests.receiver.support import COOKIE
from wallaroo_spark import Receiver
from wallaroo_spark.steps import Step, passed

BY_SPARK = "WALLAROO_TEST_STARTED_BY_SPARK"
LEASE = "WALLAROO_TEST_LEASE_SECONDS"
STANDBY = "WALLAROO_TEST_STANDBY"


def main(directory: Path, port: int, retention: float = 0.0) -> None:
    """Run until standard input ends."""
    be_mortal()
    builder = SparkSession.builder.master("local[4,4]").appName("a driver to be killed")
    for name, value in LOCAL_SPARK.items():
        builder = builder.config(name, value)
    # Few batches are kept, so that there are plans to purge.
    builder = builder.config("spark.sql.streaming.minBatchesToRetain", "2")
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Starting Java takes longest, and may be done before a driver is needed.
    sys.stdin.readline()
    rows = directory / "rows"
    rows.mkdir(exist_ok=True)

    def write(frame: DataFrame, number: int) -> None:
        found = [[row.stream, row.message_id, bytes(row.value).decode()] for row in frame.collect()]
        draft = rows / f".{number}"
        draft.write_text(json.dumps(found), encoding="utf-8")
        os.replace(draft, rows / f"{number}.json")
        passed(Step.SINK_WRITTEN)

    options: dict[str, Any] = {"workers": 2, "port": port, "cookie": COOKIE}
    options["lease_seconds"] = float(os.environ.get(LEASE, "3"))
    options["stream_retention"] = retention
    if STANDBY in os.environ:
        options |= {"registry": os.environ[STANDBY], "standby": True}
    with Receiver(spark, "orders", max_offsets_per_trigger=50, **options) as receiver:
        writer, checkpoint = receiver.stream().writeStream.foreachBatch(write), str(directory / "checkpoint")
        if BY_SPARK in os.environ:
            query = writer.option("checkpointLocation", checkpoint).start()
        else:
            query = receiver.start(writer, checkpoint=checkpoint)
        sys.stdin.read()
        assert query.exception() is None, query.exception()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:]))
