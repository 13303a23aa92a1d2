"""Registers a Python data source in a Spark session, under its own name or, where that is taken, under another."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_TAKEN = "DATA_SOURCE_ALREADY_EXISTS"


def registered(spark: SparkSession, name: str, source_named: Callable[[str], type[DataSource]]) -> str:
    """Register the class that ``source_named`` makes for a format's name; return the name in this session.

    ``source_named`` makes the class inside a function: only such a class is pickled by value, so that values of the
    class travel with it into the processes that plan and read.
    """
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(source_named(name))
    except AnalysisException as error:
        if error.getCondition() != _TAKEN:
            raise
        # The name is taken in a session that was derived from another, such as a notebook's, and cannot be replaced.
        name = f"{name}_{uuid.uuid4().hex[:8]}"
        spark.dataSource.register(source_named(name))
    return name
