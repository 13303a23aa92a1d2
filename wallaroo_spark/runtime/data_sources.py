"""Registers a Python data source in a Spark session, under its own name or, where that is taken, under another."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

_TAKEN = "DATA_SOURCE_ALREADY_EXISTS"


_last: dict[str, tuple[weakref.ref[SparkSession], Any, str]] = {}
"""By a format's name, what was registered last: the session, the content, and the name there."""


def registered(
    spark: SparkSession, name: str, content: Any, source_with: Callable[[Any, str], type[DataSource]]
) -> str:
    """Register the class that ``source_with`` makes of ``content`` and a name; return the name in this session.

    ``source_with`` makes the class inside a function: only such a class is pickled by value, so that ``content``
    travels with it into the processes that plan and read. Spark warns of each replacement, so nothing is registered
    when the last registration had this session and an equal content. Calls for one name must not overlap.
    """
    last = _last.get(name)
    if last is not None and last[0]() is spark and last[1] == content:
        return last[2]
    found = _register(spark, name, lambda named: source_with(content, named))
    _last[name] = weakref.ref(spark), content, found
    return found


def _register(spark: SparkSession, name: str, source_named: Callable[[str], type[DataSource]]) -> str:
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
