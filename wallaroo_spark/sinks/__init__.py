"""Transactional sinks: each batch of a query is written once, also when Spark runs the batch several times.

``connector``, ``delta``, ``files``, ``iceberg``, ``kafka``, ``postgres``, ``redis``, ``sql`` and ``stream`` each make a
writer for ``foreachBatch``. Each loads on first use, and raises :class:`PackageMissingError` when its client package is
not installed.
Source: ``docs/protocol.md#sinks`` and ``docs/sinks.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names
from wallaroo_spark.sinks.interface import Prepared, Sink, Transaction

if TYPE_CHECKING:
    from wallaroo_spark.sinks.connector_sink import connector
    from wallaroo_spark.sinks.stores.delta import delta
    from wallaroo_spark.sinks.stores.files import files
    from wallaroo_spark.sinks.stores.iceberg import iceberg
    from wallaroo_spark.sinks.stores.kafka import kafka
    from wallaroo_spark.sinks.stores.postgres import postgres
    from wallaroo_spark.sinks.stores.redis import redis
    from wallaroo_spark.sinks.stores.sql.sink import sql
    from wallaroo_spark.sinks.stores.stream import stream
    from wallaroo_spark.sinks.writer import BatchWriter, transactional

__all__ = [
    "BatchWriter",
    "Prepared",
    "Sink",
    "Transaction",
    "connector",
    "delta",
    "files",
    "iceberg",
    "kafka",
    "postgres",
    "redis",
    "sql",
    "stream",
    "transactional",
]

_HOMES = {
    "wallaroo_spark.sinks.connector_sink": ("connector",),
    "wallaroo_spark.sinks.stores.delta": ("delta",),
    "wallaroo_spark.sinks.stores.files": ("files",),
    "wallaroo_spark.sinks.stores.iceberg": ("iceberg",),
    "wallaroo_spark.sinks.stores.kafka": ("kafka",),
    "wallaroo_spark.sinks.stores.postgres": ("postgres",),
    "wallaroo_spark.sinks.stores.redis": ("redis",),
    "wallaroo_spark.sinks.stores.sql.sink": ("sql",),
    "wallaroo_spark.sinks.stores.stream": ("stream",),
    "wallaroo_spark.sinks.writer": ("BatchWriter", "transactional"),
}

_NEEDS = {
    "delta": ("delta",),
    "iceberg": ("iceberg",),
    "kafka": ("kafka",),
    "postgres": ("postgres",),
    "redis": ("registry",),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _NEEDS)
