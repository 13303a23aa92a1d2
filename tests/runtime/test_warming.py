"""What a standby prepares while it waits, in a real Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.waiting import SECONDS
from wallaroo_spark.runtime.spark_sessions import keep_warm

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def test_a_standby_runs_one_batch_and_leaves_no_query(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()
    caplog.set_level("DEBUG", "wallaroo_spark.runtime")
    thread = threading.Thread(target=keep_warm, args=(spark, 1, ("wallaroo_spark.worker.run",), over))
    thread.start()
    over.set()
    thread.join(SECONDS)

    assert not thread.is_alive()
    assert "wallaroo standby" not in [query.name for query in spark.streams.active]
    assert caplog.messages == []


def test_what_cannot_be_prepared_is_left_to_the_take_over(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    over.set()
    caplog.set_level("DEBUG", "wallaroo_spark.runtime")

    keep_warm(spark, 1, ("wallaroo_spark.no_such_module",), over)

    assert any("could not prepare Spark" in message for message in caplog.messages)
