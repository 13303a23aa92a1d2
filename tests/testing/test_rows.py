"""Rows of a test have the same schema, types and values as those of a receiver's stream."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from wallaroo_spark.columnar import ROW_DDL
from wallaroo_spark.connector import stream_id_of
from wallaroo_spark.errors import ConfigurationError, LocalProtocolError
from wallaroo_spark.testing import rows, rows_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)

pytestmark = pytest.mark.both


def test_the_schema_is_that_of_the_source(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    assert rows_schema() == StructType.fromDDL(ROW_DDL)
    assert rows(spark, [b"a"]).schema == rows_schema()


def test_rows_have_the_fields_that_a_producer_sends(spark: SparkSession) -> None:
    made = rows(
        spark,
        [b"a", "b"],
        ids=[7, 9],
        event_times=[NOON, None],
        keys=[None, b"k"],
        instance="shop-2",
        stream="returns",
        received_at=NOON,
    )

    number = stream_id_of("shop-2", "returns")
    signed = number - (1 << 64) if number >= 1 << 63 else number
    expected = [
        ("shop-2", "returns", signed, 7, NOON, None, bytearray(b"a"), 16, NOON),
        ("shop-2", "returns", signed, 9, None, bytearray(b"k"), bytearray(b"b"), 32, NOON),
    ]
    assert_df_equality(made, spark.createDataFrame(expected, rows_schema()))


def test_ids_count_from_one_and_no_message_is_no_row(spark: SparkSession) -> None:
    assert [row.message_id for row in rows(spark, ["a", "b", "c"]).collect()] == [1, 2, 3]
    assert rows(spark, []).collect() == []
    assert rows(spark, []).schema == rows_schema()


def test_a_column_that_is_too_short_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="there are 2 payloads and 1 ids"):
        rows(spark, ["a", "b"], ids=[1])


def test_a_time_without_a_zone_is_refused_as_the_sdk_does(spark: SparkSession) -> None:
    with pytest.raises(LocalProtocolError, match="no time zone"):
        rows(spark, ["a"], event_times=[datetime(2026, 1, 1)])
