"""What a standby prepares while it waits, in a real Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.waiting import SECONDS
from wallaroo_spark.engine.application import query
from wallaroo_spark.runtime.spark_sessions import keep_warm, rehearse, stateless_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("rehearsal", [stateless_query, query.rehearsal], ids=["receiver", "application"])
def test_a_standby_runs_a_batch_with_rows_and_leaves_no_query(
    spark: SparkSession, rehearsal: Callable[[Any], Any]
) -> None:
    assert rehearse(rehearsal(spark), threading.Event())
    assert "wallaroo standby" not in [query.name for query in spark.streams.active]


def test_the_end_of_the_wait_ends_the_rehearsal(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()
    caplog.set_level("DEBUG", "wallaroo_spark.runtime")
    modules = ("wallaroo_spark.worker.run",)
    thread = threading.Thread(target=keep_warm, args=(spark, 1, modules, stateless_query, over))
    thread.start()
    over.set()
    thread.join(SECONDS)

    assert not thread.is_alive()
    assert "wallaroo standby" not in [query.name for query in spark.streams.active]
    assert caplog.messages == []


def test_a_rehearsal_that_fails_raises_its_error(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("raise_error('no luck') AS value")
    with pytest.raises(StreamingQueryException, match="no luck"):
        rehearse(rows.writeStream.format("noop"), threading.Event())


def test_what_cannot_be_prepared_is_left_to_the_take_over(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    over.set()
    caplog.set_level("DEBUG", "wallaroo_spark.runtime")

    keep_warm(spark, 1, ("wallaroo_spark.no_such_module",), stateless_query, over)

    assert any("could not prepare Spark" in message for message in caplog.messages)
