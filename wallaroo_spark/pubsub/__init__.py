"""Publish-subscribe with Spark's batches as epochs: a subscriber sees an epoch whole, or not at all.

A driver runs a :class:`Topic` and has each batch :func:`publish` on it. What needs Spark is loaded when it is used, so
that subscribers do without. Source: ``seeds/001``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wallaroo_spark.pubsub.topic import Topic, publish

__all__ = ["Topic", "publish"]

_HOMES = {
    "Topic": "wallaroo_spark.pubsub.topic",
    "publish": "wallaroo_spark.pubsub.topic",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
