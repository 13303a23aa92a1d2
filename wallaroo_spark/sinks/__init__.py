"""Transactional sinks: each batch of a query leaves Spark once, however often it is run.

Every function here named after a kind of sink makes a writer for ``foreachBatch``; each loads on first use, with what
it needs installed. Source: ``protocol.md``, Sinks (v3, roles reversed).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wallaroo_spark.sinks.interface import Prepared, Sink, Transaction

if TYPE_CHECKING:
    from wallaroo_spark.sinks.connector_sink import connector
    from wallaroo_spark.sinks.writer import BatchWriter, transactional

__all__ = ["BatchWriter", "Prepared", "Sink", "Transaction", "connector", "transactional"]

_HOMES = {
    "BatchWriter": "wallaroo_spark.sinks.writer",
    "connector": "wallaroo_spark.sinks.connector_sink",
    "transactional": "wallaroo_spark.sinks.writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
