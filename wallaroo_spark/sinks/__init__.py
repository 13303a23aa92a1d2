"""Transactional sinks: each batch of a query is written once, also when Spark runs the batch several times.

``connector``, ``files``, ``kafka``, ``postgres`` and ``redis`` each make a writer for ``foreachBatch``. Each loads on
first use, and raises :class:`ConfigurationError` when its client package is not installed.
Source: ``docs/protocol.md#sinks`` and ``docs/sinks.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.lazy_names import lazy_names
from wallaroo_spark.sinks.interface import Prepared, Sink, Transaction

if TYPE_CHECKING:
    from wallaroo_spark.sinks.remote.connector_sink import connector
    from wallaroo_spark.sinks.stores.files import files
    from wallaroo_spark.sinks.stores.kafka import kafka
    from wallaroo_spark.sinks.stores.postgres import postgres
    from wallaroo_spark.sinks.stores.redis import redis
    from wallaroo_spark.sinks.writer import BatchWriter, transactional

__all__ = [
    "BatchWriter",
    "Prepared",
    "Sink",
    "Transaction",
    "connector",
    "files",
    "kafka",
    "postgres",
    "redis",
    "transactional",
]

_HOMES = {
    "BatchWriter": "wallaroo_spark.sinks.writer",
    "connector": "wallaroo_spark.sinks.remote.connector_sink",
    "files": "wallaroo_spark.sinks.stores.files",
    "kafka": "wallaroo_spark.sinks.stores.kafka",
    "postgres": "wallaroo_spark.sinks.stores.postgres",
    "redis": "wallaroo_spark.sinks.stores.redis",
    "transactional": "wallaroo_spark.sinks.writer",
}

# The extra of this package that installs the sink's client.
_EXTRAS = {"kafka": "kafka", "postgres": "postgres", "redis": "registry"}


_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        raise ConfigurationError(
            f"sinks.{name} needs {error.name}, which is not installed; pip install 'wallaroo-spark[{_EXTRAS[name]}]'",
            code="package-missing",
            missing=error.name,
        ) from error
