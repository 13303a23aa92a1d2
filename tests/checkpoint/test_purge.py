"""Spark is killed while it removes old batches of a log; the remaining files are not a sign of asynchronous progress.

Spark 4.3 removes the oldest first; that other orders do no harm either is a property of the model, and tested there.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.receiver.drivers import Drivers
from tests.waiting import SECONDS, eventually
from wallaroo_spark.checkpoint import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = 3_000
"""Batches to be removed: enough that a kill comes in the middle."""


def batches(log: Path) -> set[int]:
    return {int(name) for name in os.listdir(log) if name.isdigit()}


def grow_old(log: Path) -> None:
    """Have the two batches of a log be the newest of many."""
    for number in (1, 0):
        for name in (f"{number}", f".{number}.crc"):
            (log / name).rename(log / name.replace(str(number), str(OLD + number)))
    for number in range(OLD):
        for name in ("{}", ".{}.crc"):
            shutil.copy(log / name.format(OLD), log / name.format(number))


@pytest.mark.long
@pytest.mark.no_cover
@pytest.mark.parametrize("purged", ["offsets", "commits"])
def test_a_log_that_spark_was_purging_when_it_was_killed_is_accepted(
    spark: SparkSession, tmp_path: Path, purged: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    rows = spark.readStream.format("rate").load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    eventually(lambda: batches(checkpoint / "commits") >= {0, 1})
    query.stop()
    for log in ("offsets", "commits"):
        for number in batches(checkpoint / log) - {0, 1}:
            (checkpoint / log / str(number)).unlink()
            (checkpoint / log / f".{number}.crc").unlink()
        grow_old(checkpoint / log)
    with Drivers(tmp_path, "tests.checkpoint.purging") as drivers:
        driver = drivers.start(0, str(checkpoint))
        until = time.monotonic() + SECONDS
        while set(range(OLD)) <= batches(checkpoint / purged):
            assert time.monotonic() < until, drivers.log(driver)
            assert driver.poll() is None, drivers.log(driver)
        os.killpg(driver.pid, signal.SIGKILL)

    left = batches(checkpoint / purged)
    assert 0 not in left
    assert len(left) > OLD / 10
    assert CheckpointFiles(str(checkpoint)).holes() == ()
