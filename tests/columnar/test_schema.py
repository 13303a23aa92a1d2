"""The rows that Spark sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from tests.protocol.strategies import run_of
from wallaroo_spark.columnar import ROW_DDL, ROW_SCHEMA, STORED_SCHEMA, CommonColumns, decode_run, to_rows
from wallaroo_spark.protocol import DRAFT_BE, Flags, Message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN = [
    Message(1, 1, b"a", Flags.NONE, 1_500_000, b"k"),
    Message(1, 2, None, Flags.BOUNDARY),
    Message(1, 3, b"", Flags.EOS),
]


def stored(given: list[Message]) -> pa.RecordBatch:
    return decode_run(run_of(DRAFT_BE, [DRAFT_BE.encode(m) for m in given]), event_time_unit="ns").columns()


def rows(given: list[Message], *, include_boundaries: bool, stream_id: int = 1) -> pa.RecordBatch:
    common = CommonColumns.one(("orders", stream_id), ("shop-1", 1_700_000_000_000_001), len(given))
    return to_rows(stored(given), common, include_boundaries=include_boundaries)


@pytest.mark.spark
def test_the_arrow_schema_is_the_one_that_spark_derives_from_the_ddl(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    table = StructType.fromDDL(ROW_DDL)
    assert isinstance(table, StructType)
    assert to_arrow_schema(table, timezone="UTC").equals(ROW_SCHEMA, check_metadata=True)


def test_the_stored_columns_are_columns_of_the_row_table() -> None:
    assert all(ROW_SCHEMA.field(field.name).equals(field) for field in STORED_SCHEMA)


def test_rows_have_the_fields_of_message_and_stream() -> None:
    batch = rows(GIVEN, include_boundaries=True)
    batch.validate(full=True)
    assert batch.schema == ROW_SCHEMA
    assert batch["instance"].to_pylist() == ["shop-1"] * 3
    assert batch["stream"].to_pylist() == ["orders"] * 3
    assert batch["message_id"].to_pylist() == [1, 2, 3]
    assert batch["event_time"].cast("int64").to_pylist() == [1_500, None, None]
    assert batch["key"].to_pylist() == [b"k", None, None]
    assert batch["value"].to_pylist() == [b"a", None, b""]
    assert batch["flags"].to_pylist() == [int(Flags.EVENT_TIME | Flags.KEY), int(Flags.BOUNDARY), int(Flags.EOS)]
    assert batch["received_at"].cast("int64").to_pylist() == [1_700_000_000_000_001] * 3


def test_boundaries_are_left_out_unless_they_are_asked_for() -> None:
    assert rows(GIVEN, include_boundaries=False)["message_id"].to_pylist() == [1, 3]
    assert rows(GIVEN[:1], include_boundaries=False).num_rows == 1
    assert rows([], include_boundaries=False).schema == ROW_SCHEMA


def test_a_stream_id_above_the_bigint_keeps_its_bits() -> None:
    assert rows(GIVEN, include_boundaries=True, stream_id=2**64 - 2)["stream_id"].to_pylist() == [-2] * 3


def test_rows_of_several_streams_carry_each_its_own() -> None:
    numbers = np.arange(2, dtype=np.int32)
    common = CommonColumns(
        [("a", 1), ("b", 2)], [("shop-1", 10), ("shop-2", 20)], numbers, numbers, np.array([2, 1], np.int32)
    )
    batch = to_rows(stored(GIVEN), common, include_boundaries=False)
    batch.validate(full=True)
    assert batch["message_id"].to_pylist() == [1, 3]
    assert batch["instance"].to_pylist() == ["shop-1", "shop-2"]
    assert batch["stream"].to_pylist() == ["a", "b"]
    assert batch["stream_id"].to_pylist() == [1, 2]
    assert batch["received_at"].cast("int64").to_pylist() == [10, 20]
