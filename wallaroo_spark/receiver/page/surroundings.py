"""Topics of the receiver's registry and sinks of its query, for the status page: read seldom, and never a failure.

Source: ``docs/status-page.md#what-it-shows``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from wallaroo_spark.errors import RegistryError, WallarooError, one_line
from wallaroo_spark.pubsub.topic_catalog import TopicCatalog
from wallaroo_spark.sinks.two_phase.decision_log import sinks_of
from wallaroo_spark.status import SinkStatus, TopicStatus
from wallaroo_spark.status.topics import may_not_list, topic_status

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

INTERVAL_SECONDS = 10.0
"""How long topics and sinks count as known. A choice: they change with batches, and each look reads files and Redis."""
MOST_TOPICS = 50
"""The most topics that are looked at. A choice: each takes some calls to Redis."""


class Surroundings:
    """Reads topics and sinks. One thread at a time may call it."""

    def __init__(self) -> None:
        self.topics: tuple[TopicStatus, ...] = ()
        self.sinks: tuple[SinkStatus, ...] = ()
        self.unread: tuple[str, ...] = ()
        self._looked_at = float("-inf")

    def look(self, registry: str, checkpoint: str) -> None:
        """Read the topics of the registry at a URL and the sinks of a checkpoint, unless that was done lately.

        An empty URL or checkpoint has none. ``unread`` then says what could not be read, and why.
        """
        now = time.monotonic()
        if now - self._looked_at < INTERVAL_SECONDS:
            return
        self.topics, topics_unread = _readable("Topics", lambda: _topics(registry)) if registry else ((), "")
        self.sinks, sinks_unread = _readable("Sinks", lambda: _sinks(checkpoint)) if checkpoint else ((), "")
        self.unread = tuple(reason for reason in (topics_unread, sinks_unread) if reason)
        self._looked_at = time.monotonic()


def _readable(kind: str, read: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], str]:
    """The records, and an empty text; or no records, and a sentence that says why."""
    try:
        return read(), ""
    except (WallarooError, OSError) as error:
        log.debug("%s are not shown on the status page: %s", kind.lower(), error)
        reason = may_not_list(error) if isinstance(error, RegistryError) else ""
        return (), reason or f"{kind} are not shown: {error}"


def _sinks(checkpoint: str) -> tuple[SinkStatus, ...]:
    return tuple(SinkStatus(**sink) for sink in sinks_of(checkpoint))


def _topics(registry: str) -> tuple[TopicStatus, ...]:
    with TopicCatalog(registry, attempts=1) as catalog:
        found = [topic_status(catalog, name) for name in catalog.names()[:MOST_TOPICS]]
    return tuple(topic for topic in found if topic is not None)
