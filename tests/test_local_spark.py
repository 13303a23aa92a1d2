"""The run's local Spark session is set up as the other tests count on it to be."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.both


def test_it_is_the_pyspark_that_this_run_is_to_use(spark: SparkSession) -> None:
    import pyspark

    def versions(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pyspark

        for frame in frames:
            yield frame.assign(version=pyspark.__version__)

    told = os.environ.get("WALLAROO_PYSPARK")
    (found,) = spark.range(1).mapInPandas(versions, "id long, version string").collect()

    assert spark.version == pyspark.__version__ == found.version
    assert not told or told.endswith(f"pyspark-{'.'.join(spark.version.split('.')[:2])}")


def test_it_has_four_task_slots_and_listens_on_loopback_only(spark: SparkSession) -> None:
    assert spark.sparkContext.defaultParallelism == 2
    assert spark.sparkContext.master == "local[4]"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_its_tasks_run_in_this_python_and_know_the_tests(spark: SparkSession) -> None:
    def where(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import tests.conftest

        for frame in frames:
            yield frame.assign(python=sys.executable, root=str(tests.conftest.ROOT))

    found = spark.range(1).mapInPandas(where, "id long, python string, root string")

    from tests.conftest import ROOT

    expected = spark.createDataFrame([(0, sys.executable, str(ROOT))], "id long, python string, root string")
    assert_df_equality(found, expected, ignore_nullable=True)
