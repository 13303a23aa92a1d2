"""Push streams of records straight into Spark Structured Streaming, acknowledged by its checkpoint.

Names load on first use, so that ``import wallaroo_spark.connector`` works where there is no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wallaroo_spark.connector import BlockingConnector, Connector
    from wallaroo_spark.receiver import Receiver

__version__ = "0.1.0"
__all__ = ["BlockingConnector", "Connector", "Receiver"]

_HOMES = {
    "Receiver": "wallaroo_spark.receiver",
    "Connector": "wallaroo_spark.connector",
    "BlockingConnector": "wallaroo_spark.connector",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
