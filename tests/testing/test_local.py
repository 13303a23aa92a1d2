"""A receiver for tests runs the query of a test on its messages, with real connectors, workers and commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.testing import LocalReceiver, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def lines(received: DataFrame) -> DataFrame:
    return received.selectExpr("instance", "stream", "message_id", "CAST(value AS STRING) AS line")


def test_sent_messages_are_in_the_results_when_send_returns(spark: SparkSession, tmp_path: Path) -> None:
    with LocalReceiver(spark, tmp_path, cookie="secret") as receiver:
        receiver.start(lines)
        receiver.send(["a", "b"], ids=[1, 2])
        assert_df_equality(receiver.results(), lines(rows(spark, ["a", "b"])))

        receiver.send(["c"], ids=[3], stream="returns", instance="shop-2")
        assert receiver.results().count() == 3

        receiver.start(lambda received: received.groupBy("stream").count(), output_mode="complete")
        receiver.send(["a", "b"], ids=[1, 2])
        assert [tuple(row) for row in receiver.results().collect()] == [("orders", 2)]
        addresses = receiver.receiver.addresses
        assert len(addresses) == 1
        assert addresses[0].startswith("127.0.0.1:")
    assert receiver.receiver.addresses == []


def test_a_query_must_be_started_first(spark: SparkSession, tmp_path: Path) -> None:
    receiver = LocalReceiver(spark, tmp_path)

    with pytest.raises(ConfigurationError, match=r"call start\(\)"):
        receiver.send(["a"])
    with pytest.raises(ConfigurationError, match=r"call start\(\)"):
        receiver.results()


def test_send_fails_with_the_error_of_the_query(spark: SparkSession, tmp_path: Path) -> None:
    with LocalReceiver(spark, tmp_path) as receiver:
        receiver.start(lambda received: received.selectExpr("raise_error('no such book') AS line"))
        with pytest.raises(StreamingQueryException, match="no such book"):
            receiver.send(["a"], ids=[1])
        with pytest.raises(StreamingQueryException, match="no such book"):
            receiver.send(["b"], ids=[2])
        with pytest.raises(StreamingQueryException, match="no such book"):
            receiver.results()

        receiver.start(lines).stop()
        with pytest.raises(ConfigurationError, match="the query was stopped"):
            receiver.send(["a"], ids=[1])
        assert receiver.results().count() == 0
