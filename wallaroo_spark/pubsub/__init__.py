"""Publish-subscribe with Spark's batches as epochs. A subscriber receives an epoch completely or not at all.

A driver runs a :class:`Topic` and publishes each batch with :func:`publish`. Another program receives the batches with
:func:`subscribe`, or forwards them to another Spark application with a :class:`TopicSource`. Modules that need Spark
are imported on first use, so that a subscriber works without Spark. Source:
``docs/pubsub/protocol.md#where-it-comes-from``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.pubsub.publishing.topic import Topic, publish
    from wallaroo_spark.pubsub.subscribing.subscription import Subscription, subscribe
    from wallaroo_spark.pubsub.subscribing.topic_source import TopicSource
    from wallaroo_spark.pubsub.times import Epoch, Frontier, Lost, Position

__all__ = [
    "Epoch",
    "Frontier",
    "Lost",
    "Position",
    "Subscription",
    "Topic",
    "TopicSource",
    "publish",
    "subscribe",
]

_HOMES = {
    "wallaroo_spark.pubsub.publishing.topic": ("Topic", "publish"),
    "wallaroo_spark.pubsub.subscribing.subscription": ("Subscription", "subscribe"),
    "wallaroo_spark.pubsub.subscribing.topic_source": ("TopicSource",),
    "wallaroo_spark.pubsub.times": ("Epoch", "Frontier", "Lost", "Position"),
}

_NEEDS = {**dict.fromkeys(__all__, ("pubsub",)), **dict.fromkeys(("Topic", "publish"), ("spark", "pubsub"))}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _NEEDS)
