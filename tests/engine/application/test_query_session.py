"""The session of an application's query, and the number of partitions of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wallaroo_spark.engine.application.query import (
    PARTITIONS,
    SETTINGS,
    STATE_STORE,
    query_session,
    state_partitions,
)
from wallaroo_spark.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_first_batch_fixes_the_number_of_partitions() -> None:
    assert state_partitions(None, None, task_slots=6) == 6
    assert state_partitions(None, None, task_slots=5000) == 64
    assert state_partitions(8, None, task_slots=2) == 8
    assert state_partitions(None, 8, task_slots=2) == 8
    assert state_partitions(8, 8, task_slots=2) == 8


def test_another_number_than_the_one_in_the_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"state_partitions is 9, .* divided into 8, .* give 8") as refused:
        state_partitions(9, 8, task_slots=2)

    assert refused.value.code == "state-partitions-fixed"


def test_the_query_has_the_users_settings_and_its_own_and_the_user_sees_none_of_these(spark: SparkSession) -> None:
    before = {name: spark.conf.get(name, None) for name in (*SETTINGS, PARTITIONS)}
    spark.conf.set("spark.wallaroo.test.mark", "the user's")
    spark.range(3).createOrReplaceTempView("three_rows")
    try:
        session = query_session(spark, 7)

        assert session.conf.get("spark.wallaroo.test.mark") == "the user's"
        assert session.table("three_rows").count() == 3
        assert session.conf.get(PARTITIONS) == "7"
        assert session.conf.get(STATE_STORE).endswith("RocksDBStateStoreProvider")
        assert {name: spark.conf.get(name, None) for name in before} == before
    finally:
        spark.conf.unset("spark.wallaroo.test.mark")
        spark.catalog.dropTempView("three_rows")
