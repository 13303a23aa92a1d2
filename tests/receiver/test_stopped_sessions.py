"""A notebook that stops Spark, and goes on in a new session: receivers of the old one end, and their names are free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import SECONDS

NOTEBOOK = """
import time
from pyspark.sql import SparkSession
from wallaroo_spark import Receiver
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.errors import ConfigurationError

def session():
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1"}
    made = SparkSession.builder.master("local[3]").config(map=settings).getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made

def feed(receiver, first):
    rows = receiver.stream().writeStream.option("checkpointLocation", "checkpoint").start("rows")
    with BlockingConnector(receiver.name, instance="shop-1", workers=receiver.addresses) as connector:
        stream = connector.open("orders")
        print("behind", stream.reference)
        stream.send_many([b"a line"] * 5, ids=range(first, first + 5))

spark = session()
old = Receiver(spark, "orders").start()
feed(old, 1)
spark.stop()
%s
spark = session()
try:
    old.start()
except ConfigurationError as error:
    print(error)
new = Receiver(spark, "orders").start()
print("old", old.status().running, old.addresses)
feed(new, 6)
print(spark.read.parquet("rows").count(), "rows")
new.stop()
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param("", id="at once"),
        pytest.param("while old.status().running: time.sleep(0.1)", id="later", marks=pytest.mark.long),
    ],
)
def test_a_receiver_ends_with_its_session_and_one_of_its_name_goes_on_in_the_next(
    tmp_path: Path, meanwhile: str
) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK.replace("%s", meanwhile), encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=3 * SECONDS
    )

    assert ran.returncode == 0, ran.stderr
    behind_nothing, refused, *more = ran.stdout.splitlines()
    assert behind_nothing == "behind None"
    assert refused.startswith("receiver 'orders': its Spark session was stopped; make it again with the session")
    assert more == ["old False []", "behind 5", "10 rows"]
    assert "submitted again" not in ran.stderr
