"""Receive messages and write a total per instance for each batch, so that a batch that runs twice changes nothing.

python examples/foreach_batch.py /tmp/totals

Spark may run a batch again after a failure. The receiver gives it the same messages again, and the folder of the batch
is written over: so each message counts once. The addresses that it prints are for connectors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wallaroo_spark import Receiver

THIS_MACHINE = {
    # Spark's UI has links that end jobs, listens on every interface and asks nobody for a token.
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A worker is a job that does not end, and would be a progress bar for ever.
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of Spark for a session on this machine alone."""


class Totals:
    """The function of ``foreachBatch``: write the number of messages and bytes of each instance, in one folder for each
    batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the totals of a batch over those that an earlier run of it may have written."""
        totals = batch.groupBy("instance").agg({"*": "count", "value_bytes": "sum"})
        named = totals.toDF("instance", *[name.split("(")[0] for name in totals.columns[1:]])
        named.write.mode("overwrite").parquet(str(self._folder / f"batch={batch_id}"))


def start(receiver: Receiver, folder: Path) -> StreamingQuery:
    """Start the query; its checkpoint is beside the totals, and a query that starts there again goes on."""
    rows = receiver.stream().selectExpr("instance", "length(value) AS value_bytes")
    query: StreamingQuery = receiver.start_query(
        rows.writeStream.foreachBatch(Totals(folder / "totals")), checkpoint=str(folder / "checkpoint")
    )
    return query


def main() -> None:
    """Read the command line and run until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Totals of what connectors send, batch by batch.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=7100, help="port of the first worker; the next has the next one")
    given = parser.parse_args()
    spark = SparkSession.builder.master("local[4]").appName("totals").config(map={**THIS_MACHINE}).getOrCreate()
    with Receiver(spark, "totals", workers=2, port=given.port) as receiver:
        query = start(receiver, given.folder)
        print(f"workers listen at {','.join(receiver.addresses)}", flush=True)
        query.awaitTermination()


if __name__ == "__main__":
    main()
