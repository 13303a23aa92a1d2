"""The demo's Spark job: it writes rows and per-minute totals as Parquet, with one folder for each batch.

A batch that is run again replaces its earlier files, so the sink is idempotent.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from wallaroo_spark.cli.sessions import builder, log_to

TASK_SLOTS = 4
_ORDER = "shop string, time timestamp, quantity long, cents long"


def make_session(folder: Path) -> SparkSession:
    """Start Spark in local mode, with its log in ``spark.log``."""
    log4j = folder / "log4j2.properties"
    log4j.write_text(
        "rootLogger.level = warn\n"
        "rootLogger.appenderRef.file.ref = file\n"
        "appender.file.type = File\n"
        "appender.file.name = file\n"
        f"appender.file.fileName = {folder / 'spark.log'}\n"
        "appender.file.layout.type = PatternLayout\n"
        "appender.file.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex\n"
    )
    settings = {
        "spark.master": f"local[{TASK_SLOTS}]",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        **log_to(log4j),
    }
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session: SparkSession = builder("wallaroo-spark demo", settings, TASK_SLOTS).getOrCreate()
    return session


class CountingSink:
    """Writes each batch, and counts the messages of each committed one."""

    def __init__(self, folder: Path, *, totals: bool) -> None:
        self.rows = folder / "rows"
        self.minutes = folder / "minutes"
        self.batches: dict[int, int] = {}
        self._totals = totals
        self._lock = threading.Lock()

    @property
    def messages(self) -> int:
        """Messages written so far."""
        with self._lock:
            return sum(self.batches.values())

    @property
    def filled(self) -> int:
        """The number of batches with messages; Spark runs the first batch although it has none."""
        with self._lock:
            return sum(count > 0 for count in self.batches.values())

    def write(self, batch: DataFrame, number: int) -> None:
        """Write one batch, for ``foreachBatch``. A batch that is run again replaces its earlier files."""
        rows = self.rows / f"batch={number}"
        batch.select("instance", "stream", "message_id", "value").write.mode("overwrite").parquet(str(rows))
        written = batch.sparkSession.read.parquet(str(rows))
        if self._totals:
            order = f.from_json(f.col("value").cast("string"), _ORDER)
            totals = totals_of(written.select(order.alias("order")).select("order.*"))
            totals.write.mode("overwrite").parquet(str(self.minutes / f"batch={number}"))
        with self._lock:
            self.batches[number] = written.count()

    def finish(self, spark: SparkSession, target: Path) -> DataFrame | None:
        """The totals of all batches as one Parquet folder, in order; None when there are none."""
        if not self._totals or not any(self.minutes.glob("batch=*/*.parquet")):
            return None
        parts = spark.read.parquet(str(self.minutes))
        totals = parts.groupBy("minute", "shop").agg(
            *(f.sum(name).alias(name) for name in ("orders", "items", "cents"))
        )
        totals.orderBy("minute", "shop").coalesce(1).write.mode("overwrite").parquet(str(target))
        return spark.read.parquet(str(target)).orderBy("minute", "shop")


def totals_of(orders: DataFrame) -> DataFrame:
    """The totals of orders by the minute that they fall into, and by shop."""
    minute = f.date_trunc("minute", f.col("time")).alias("minute")
    items, cents = f.sum("quantity").alias("items"), f.sum("cents").alias("cents")
    return orders.groupBy(minute, "shop").agg(f.count(f.lit(1)).alias("orders"), items, cents)


def expected_totals(spark: SparkSession, files: list[str]) -> DataFrame:
    """Compute the same totals from the sent files themselves."""
    return totals_of(spark.read.schema(_ORDER).json(files)).orderBy("minute", "shop")


def clear(folder: Path) -> None:
    """Delete the files of an earlier run in the folder, and no other files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("orders", "rows", "minutes", "totals", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("spark.log", "log4j2.properties"):
        (folder / name).unlink(missing_ok=True)
