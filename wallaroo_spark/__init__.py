"""Push streams of records straight into Spark Structured Streaming, acknowledged by its checkpoint.

Names load on first use, so that ``import wallaroo_spark.connector`` works where there is no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.connector import BlockingConnector, Connector
    from wallaroo_spark.engine import Application
    from wallaroo_spark.receiver import Receiver
    from wallaroo_spark.streams import follow_stream, read_history, read_instances, read_stream

__version__ = "0.1.0"
__all__ = [
    "Application",
    "BlockingConnector",
    "Connector",
    "Receiver",
    "follow_stream",
    "read_history",
    "read_instances",
    "read_stream",
]

_HOMES = {
    "wallaroo_spark.connector": ("BlockingConnector", "Connector"),
    "wallaroo_spark.engine": ("Application",),
    "wallaroo_spark.receiver": ("Receiver",),
    "wallaroo_spark.streams": ("follow_stream", "read_history", "read_instances", "read_stream"),
}

_NEEDS = {
    "Application": ("spark", "pipelines", "embedded"),
    "Receiver": ("spark", "embedded"),
    **dict.fromkeys(_HOMES["wallaroo_spark.streams"], ("spark", "pipelines")),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _NEEDS)
