"""Topics of a registry and sinks of a query, as parts of a status: read seldom, and never a failure of the receiver.

Source: ``docs/status-page.md#what-it-shows``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from wallaroo_spark.errors import RegistryError, WallarooError, one_line
from wallaroo_spark.observe.receiver import PartitionStatus, SinkStatus, TopicStatus
from wallaroo_spark.pubsub.topic_catalog import TopicCatalog
from wallaroo_spark.sinks.decision_log import sinks_of

log = one_line("wallaroo_spark.receiver")

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
        self.topics, no_topics = _readable("Topics", registry, lambda: topics_in(registry, 1, MOST_TOPICS))
        self.sinks, no_sinks = _readable("Sinks", checkpoint, lambda: sinks_in(checkpoint))
        self.unread = tuple(reason for reason in (no_topics, no_sinks) if reason)
        self._looked_at = time.monotonic()


def _readable(kind: str, place: str, read: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], str]:
    """The records at a place, and an empty text; or no records, and a sentence that says why."""
    try:
        return read() if place else (), ""
    except (WallarooError, OSError) as error:
        log.debug("%s are not shown on the status page: %s", kind.lower(), error)
        reason = may_not_list(error) if isinstance(error, RegistryError) else ""
        return (), reason or f"{kind} are not shown: {error}"


def sinks_in(checkpoint: str) -> tuple[SinkStatus, ...]:
    """The transactional sinks of the query with this checkpoint."""
    return tuple(SinkStatus(**sink) for sink in sinks_of(checkpoint))


def topics_in(registry: str, attempts: int, most: int | None = None) -> tuple[TopicStatus, ...]:
    """The running topics of a registry, of at most so many names. Raises :class:`RegistryError` when it does not
    answer."""
    with TopicCatalog(registry, attempts=attempts) as catalog:
        found = [topic_status(catalog, name) for name in catalog.names()[:most]]
    return tuple(topic for topic in found if topic is not None)


def topic_status(catalog: Any, name: str) -> TopicStatus | None:
    """The topic of this name in a ``TopicCatalog``, with each partition; None when it does not run.

    Raises :class:`RegistryError` when the registry does not answer.
    """
    record = catalog.find(name)
    if record is None:
        return None
    served = catalog.served(name)
    partitions = tuple(_partition(number, served.get(number)) for number in range(record.partitions))
    return TopicStatus(name, record.owner, record.identity, partitions)


def may_not_list(error: RegistryError) -> str:
    """The sentence for a Redis user that lacks the right to list the topics; empty for any other error."""
    if "no permissions" not in error.message:
        return ""
    return (
        "Topics are not shown, because the Redis user of the registry's URL may not list them: they need +scan, as the "
        "user operators of docs/security.md has"
    )


def _partition(number: int, place: Any) -> PartitionStatus:
    if place is None:
        return PartitionStatus(number, "vacant")
    return PartitionStatus(number, "serving", place.address, place.progress.newest, place.progress.subscribers)
