"""A partition as its publisher holds it: the lease, how far it is, and whether its topic has ended.

Source: ``docs/architecture.md#rules``, rule 5.
"""

from __future__ import annotations

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, TopicCatalog
from wallaroo_spark.registry import Registry
from wallaroo_spark.slots.tenancy import Tenancy


class PartitionTenancy(Tenancy):
    """The right to serve a partition of a topic."""

    def __init__(
        self, registry: Registry, topics: TopicCatalog, topic: str, partition: int, submission: int, holder: str
    ) -> None:
        super().__init__(registry, partition, submission, holder, f"topic {topic}, partition {partition}")
        self._registry = registry
        self._topics = topics
        self._topic = topic
        self._partition = partition

    async def renew(self, progress: PublisherProgress) -> None:
        """Keep the lease, and say how far the publisher is. Raises :class:`RegistryError`."""
        lease = self.current
        await self.ask(lambda: self._registry.renew(lease))
        await self.ask(lambda: self._topics.report(self._topic, self._partition, progress))

    async def ended(self) -> bool:
        """Whether the driver has said that the topic has come to its end."""
        try:
            return (await self.ask(self._registry.fleet)).get(ENDED) == "yes"
        except RegistryError:
            return False


ENDED = "ended"
"""What a driver publishes for its topic's publishers, ``yes`` once the topic has come to its end."""
