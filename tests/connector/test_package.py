"""The exports and the requirements of the package."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import SECONDS
from wallaroo_spark import connector

HEAVY = ("pyspark", "pyarrow", "numpy", "pandas", "redis")

CHECK = f"""
import sys
for name in {HEAVY!r}:
    sys.modules[name] = None
import wallaroo_spark.connector
import wallaroo_spark
assert wallaroo_spark.Connector is wallaroo_spark.connector.Connector
assert wallaroo_spark.BlockingConnector is wallaroo_spark.connector.BlockingConnector
wallaroo_spark.connector.Connector("orders", instance="shop-1", workers="localhost:7100")
"""


def test_it_imports_without_spark_arrow_numpy_pandas_and_redis() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_public_names_are_these() -> None:
    assert sorted(connector.__all__) == [
        "Acknowledgement",
        "Backoff",
        "BlockingConnector",
        "BlockingStream",
        "CONNECTOR_CODES",
        "Connector",
        "ConnectorCause",
        "ConnectorStatus",
        "Delivery",
        "FeedProgress",
        "FeedResult",
        "Framed",
        "Lines",
        "Record",
        "Records",
        "RotatedFramed",
        "RotatedLines",
        "Source",
        "Stdin",
        "Stream",
        "stream_id_of",
    ]
    assert all(hasattr(connector, name) for name in connector.__all__)
