"""The lookup of a topic that may not run yet."""

from __future__ import annotations

import time

from wallaroo_spark.errors import PubSubError, RegistryError
from wallaroo_spark.pubsub.subscribing.settings import Catalog, TopicDescription

FIND_SECONDS = 0.2
"""Seconds between two lookups of a topic that does not run yet. A choice: five Redis calls a second."""


class TopicSearch:
    """Looks a topic up until it runs, for ``wait`` seconds at most. The caller waits :attr:`pause` between attempts."""

    def __init__(self, catalog: Catalog, topic: str, wait: float) -> None:
        self._catalog = catalog
        self._topic = topic
        self._wait = wait
        self._until = time.monotonic() + wait

    @property
    def pause(self) -> float:
        """Seconds until the next attempt."""
        return min(FIND_SECONDS, max(0.0, self._until - time.monotonic()))

    def attempt(self) -> TopicDescription | None:
        """The description of the topic; None when it does not run yet, or the registry does not answer. It blocks.

        Raises :class:`PubSubError` or :class:`RegistryError` in place of None once the time is over.
        """
        over = time.monotonic() >= self._until
        try:
            found = self._catalog.find(self._topic)
        except RegistryError:
            if over:
                raise
            return None
        if found is None and over:
            waited = f", after {self._wait:g} seconds" if self._wait else ""
            raise PubSubError(
                f"topic {self._topic!r} has no publisher in this registry{waited}; check the name and the registry, or "
                "wait for it longer",
                code="topic-not-found",
                topic=self._topic,
            )
        return found
