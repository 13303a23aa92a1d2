"""An application on this machine with one stream and nothing else to do, for programs that measure publishing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wallaroo_spark.cli.sessions import LOG4J, THIS_MACHINE, log_to

STREAM = "bench/events"
SCHEMA = """
kind: Namespace
name: bench
---
kind: Stream
name: events
namespace: bench
"""


@contextmanager
def quiet_application(folder: Path, slots: int = 3, **options: Any) -> Iterator[Any]:
    """Start Spark and an ``Application`` with one gateway in ``folder``, and end both.

    ``options`` are those of the application. Spark has so many task ``slots``. The state has one partition.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from wallaroo_spark.engine import Application
    from wallaroo_spark.pipelines.schema.applying import apply_files
    from wallaroo_spark.pipelines.schema.store import SchemaStore

    document, application = folder / "bench.yaml", str(folder / "bench")
    document.write_text(SCHEMA, encoding="utf-8")
    apply_files(SchemaStore(application), [str(document)], time.time())
    builder = SparkSession.builder.master(f"local[{slots}]").appName("publishing")
    for name, value in (THIS_MACHINE | log_to(LOG4J)).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with Application(spark, application, state_partitions=1, **options) as running:
            yield running
    finally:
        spark.stop()
