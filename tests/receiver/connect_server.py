"""A Spark Connect server whose driver runs a receiver, as a process of its own.

    python -m tests.receiver.connect_server DIRECTORY

It writes the server's address and the workers' into ``DIRECTORY/serving.json`` when both serve, and ends in good order
when its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.conftest import LOCAL_SPARK
from tests.receiver.support import COOKIE
from wallaroo_spark import Receiver

CONNECT = {"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin"}


def main(directory: Path) -> None:
    """Run until standard input ends."""
    builder = SparkSession.builder.master("local[4]").appName("a Connect server with a receiver")
    for name, value in {**LOCAL_SPARK, **CONNECT}.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    assert spark._jvm is not None
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    with Receiver(spark, "orders", workers=1, cookie=COOKIE, lease_seconds=3) as receiver:
        draft = directory / ".serving.json"
        draft.write_text(json.dumps({"server": f"sc://127.0.0.1:{port}", "workers": receiver.addresses}))
        os.replace(draft, directory / "serving.json")
        sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
