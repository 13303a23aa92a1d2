"""The program of the bundle's jobs: a verb of ``wallaroo-spark``, in the session that Databricks has made."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from wallaroo_spark.cli.main import main

# Verbs use the active session, and would start Spark in local mode where there is none.
SparkSession.builder.getOrCreate()
try:
    main(sys.argv[1:])
except SystemExit as ended:
    # Every SystemExit is a failure to some runtimes, also that with status 0.
    if ended.code:
        raise
