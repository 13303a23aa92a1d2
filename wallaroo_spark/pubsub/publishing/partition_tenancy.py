"""A publisher's tenancy of its partition: the lease, the progress it reports, and whether the topic has ended.

Source: ``docs/architecture.md#rules``, rule 5.
"""

from __future__ import annotations

from wallaroo_spark.errors import RegistryError
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, TopicCatalog
from wallaroo_spark.registry import Registry
from wallaroo_spark.slots.tenancy import Tenancy


class PartitionTenancy(Tenancy):
    """The right of a publisher to serve one partition of a topic."""

    def __init__(
        self, registry: Registry, topics: TopicCatalog, topic: str, partition: int, submission: int, holder: str
    ) -> None:
        super().__init__(registry, partition, submission, holder, f"topic {topic}, partition {partition}")
        self._registry = registry
        self._topics = topics
        self._topic = topic
        self._partition = partition

    async def renew(self, progress: PublisherProgress) -> None:
        """Renew the lease and report the publisher's progress. Raises :class:`RegistryError`."""
        lease = self.current
        await self.ask(lambda: self._registry.renew(lease))
        await self.ask(lambda: self._topics.report(self._topic, self._partition, progress))

    async def ended(self) -> bool:
        """Whether the driver has recorded in the registry that the topic has ended."""
        try:
            return (await self.ask(self._registry.fleet)).get(ENDED) == "yes"
        except RegistryError:
            return False


ENDED = "ended"
"""Key of the fleet values under which a driver publishes the end of its topic: ``yes``, or empty while it runs."""
