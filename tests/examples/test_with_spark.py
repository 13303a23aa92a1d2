"""The examples that run beside Spark, and behind it."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT
from tests.waiting import SECONDS, eventually
from wallaroo_spark import BlockingConnector, Receiver
from wallaroo_spark.pubsub import Topic, publish
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def example(name: str) -> ModuleType:
    """An example as a module; Spark's tasks import nothing of it."""
    found = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_totals_of_batches_count_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    foreach_batch = example("foreach_batch")
    for first in (1, 3):
        with Receiver(spark, "totals", workers=1) as receiver:
            query = foreach_batch.start(receiver, tmp_path)
            settings: dict[str, Any] = {"workers": receiver.addresses, "drain_timeout": SECONDS}
            with BlockingConnector("totals", instance="shop-1", **settings) as connector:
                connector.open("orders").send_many([b"book", b"ink"], ids=[first, first + 1])
            assert query.isActive

    totals = spark.read.parquet(str(tmp_path / "totals"))
    assert [tuple(row) for row in totals.groupBy("instance").sum("count", "sum").collect()] == [("shop-1", 4, 14)]


def test_a_subscriber_that_is_killed_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint, position = str(tmp_path / "checkpoint"), tmp_path / "position.json"
    program = [sys.executable, str(ROOT / "examples" / "follow_a_topic.py"), "totals", "--position", str(position)]
    rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    epochs: list[int] = []
    with EmbeddedRedis() as store, Topic(spark, "totals", checkpoint=checkpoint, partitions=1, registry=store.url):
        writer = rows.writeStream.foreachBatch(lambda frame, _: publish(frame, "totals"))
        query = writer.option("checkpointLocation", checkpoint).start()
        for _ in range(2):
            with subprocess.Popen([*program, "--registry", store.url], stdout=subprocess.PIPE, text=True) as follower:
                assert follower.stdout is not None
                lines = [follower.stdout.readline() for _ in range(3)]
                eventually(position.exists, seconds=SECONDS)
                follower.send_signal(signal.SIGKILL)
                lines += follower.stdout.readlines()
            numbers = [int(line.split(" ", 1)[0]) for line in lines if line.endswith("\n")]
            # No epoch after the saved position is missing, and at most the epoch that was handled last comes again.
            assert not epochs or numbers[0] in (epochs[-1], epochs[-1] + 1)
            epochs += numbers
        query.stop()

    assert json.loads(position.read_text(encoding="utf-8"))["time"] > epochs[0]
    assert sorted(set(epochs)) == list(range(epochs[0], epochs[-1] + 1))
