"""A driver of the shop's application, whose folder is elsewhere than on this machine's disk, as a process.

    python -m tests.storage.application_driver DIRECTORY PORT FOLDER REDIS SETTINGS

Its gateway listens at PORT. SETTINGS are Spark's, as JSON. On S3 it keeps logs of Delta Lake. When its standard input
ends it stops the application, and prints a line with its errors, the numbers of records in the tables and of instances
that are done.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.conftest import LOCAL_SPARK
from tests.engine.application import shop
from tests.storage.servers import BUCKET
from wallaroo_spark import read_instances, read_stream
from wallaroo_spark.engine import Application
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.store import SchemaStore


def main(directory: Path, port: int, folder: str, redis: str, settings: dict[str, str]) -> None:
    """Run until standard input ends."""
    builder = SparkSession.builder.master("local[3,4]").appName("an application whose folder is elsewhere")
    for name, value in {**LOCAL_SPARK, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", f"file://{directory}/warehouse").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    document = directory / "shop.yaml"
    document.write_text(shop.SCHEMA.format(most=50), encoding="utf-8")
    apply_files(SchemaStore(folder, spark), [str(document)], time.time())
    options: dict[str, Any] = {
        "registry": redis,
        "port": port,
        "state_partitions": 2,
        "lease_seconds": 3.0,
        "move_seconds": 0.5,
        "delta": folder.startswith("s3a:"),
    }
    with Application(spark, folder, **options) as application:
        print("runs", flush=True)
        sys.stdin.read()
        errors = application.status()["errors"]
    found = {name: read_stream(spark, folder, f"shop/{name}").count() for name in ("orders", "shipments")}
    found["done"] = read_instances(spark, folder).where("outcome = 'done'").count()
    if options["delta"]:
        found["delta"] = records_in_log(f"{folder.replace('s3a:', 's3:')}/streams/shop/orders", settings)
    print("tables", json.dumps({**found, "errors": errors}), flush=True)
    spark.stop()


def records_in_log(table: str, settings: dict[str, str]) -> int:
    """The number of records that a reader of Delta finds."""
    from deltalake import DeltaTable

    prefix = "spark.hadoop.fs.s3a."
    options = {
        "AWS_ENDPOINT_URL": settings[f"{prefix}endpoint"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": settings[f"{prefix}endpoint.region"],
        "AWS_ACCESS_KEY_ID": settings[f"{prefix}bucket.{BUCKET}.access.key"],
        "AWS_SECRET_ACCESS_KEY": settings[f"{prefix}bucket.{BUCKET}.secret.key"],
    }
    files = pa.table(DeltaTable(table, storage_options=options).get_add_actions())
    return int(sum(files.column("num_records").to_pylist()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
