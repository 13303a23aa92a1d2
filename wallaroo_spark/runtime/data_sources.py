"""Registers a Python data source in a Spark session, under its own name or, where that is taken, under another.

A source needs values that are no options, because Spark shows options in plans and in its UI. The class that is
registered has those of all of its users in this process; Spark pickles it by value, and sends it to the processes in
which the source plans and reads.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

D = TypeVar("D", bound="DataSource")

_TAKEN = "DATA_SOURCE_ALREADY_EXISTS"


_registering = threading.Lock()
_values: defaultdict[type, dict[str, Any]] = defaultdict(dict)
"""For each source the values of its users. Of two users with one key, the last one's counts."""
_last: dict[type, tuple[weakref.ref[SparkSession], Any, str]] = {}
"""For each source what was registered last: the session, the values, and the name there."""


@contextlib.contextmanager
def registered(spark: SparkSession, source: type[DataSource], key: str, value: Any) -> Iterator[str]:
    """Register a source for a block that is given its name in this session; nothing else is registered meanwhile.

    The source has ``value`` under ``key`` in its attribute ``values``. Spark warns of each replacement, so nothing is
    registered when the last registration had this session and equal values.
    """
    with _registering:
        _values[source][key] = value
        known, last = dict(_values[source]), _last.get(source)
        if last is None or last[0]() is not spark or last[1] != known:
            name = _register(spark, source.name(), lambda named: with_values(source, known, named))
            last = _last[source] = weakref.ref(spark), known, name
        yield last[2]


def with_values(source: type[D], values: Mapping[str, Any], format_name: str) -> type[D]:
    """A source that has these values. It is in no module, and only such a class is pickled by value."""
    return type(source.__name__, (source,), {"values": values, "name": classmethod(lambda _: format_name)})


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
