"""A partition's lease as its publisher holds it. Source: ``docs/architecture.md#rules``, rule 5."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wallaroo_spark.errors import LeaseLostError, RegistryError, one_line
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, TopicCatalog
from wallaroo_spark.registry import Lease, Registry
from wallaroo_spark.transport import refuses

log = one_line(logging.getLogger("wallaroo_spark.pubsub"))

T = TypeVar("T")


class Tenancy:
    """The right to serve a partition, from asyncio; every question to Redis is asked by one thread."""

    def __init__(
        self, registry: Registry, topics: TopicCatalog, topic: str, partition: int, submission: int, holder: str
    ) -> None:
        self.current: Lease | None = None
        self._registry = registry
        self._topics = topics
        self._topic = topic
        self._partition = partition
        self._submission = submission
        self._holder = holder
        self._thread = ThreadPoolExecutor(1, "wallaroo-topic-lease")
        self._away = False

    async def take(self, address: str, stopped: asyncio.Event, pause: float) -> bool:
        """Take the lease, and say where the partition is served when ``address`` is not empty; asks until it is had.

        False when ``stopped`` was set meanwhile. A copy of the same submission waits here for as long as the first one
        lives. Raises :class:`LeaseLostError` when a newer submission is known.
        """
        while not stopped.is_set():
            try:
                lease = await self._run(
                    lambda: self._registry.acquire(self._partition, self._submission, self._holder, address, "")
                )
                if lease is not None:
                    self.current = lease
                    return True
                if await self._relieve_the_dead():
                    continue
            except LeaseLostError:
                raise
            except RegistryError as error:
                log.warning("%s waits for the registry: %s", self._topic, error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), pause)
        return False

    async def _relieve_the_dead(self) -> bool:
        """Give back the lease of a holder whose port refuses connections: a killed process cannot do so itself."""
        held = (await self._run(self._registry.leases)).get(self._partition)
        if held is None or not held.connect or not await refuses(held.connect):
            return False
        log.warning("%s: its publisher %s is gone; its lease is given back", self._topic, held.holder)
        await self._run(lambda: self._registry.release(held))
        return True

    async def renew(self, standing: PublisherProgress) -> None:
        """Keep the lease, and say how far the publisher is, as far as the registry answers.

        Raises :class:`LeaseLostError` when it is another's.
        """
        lease = self.current
        assert lease is not None
        try:
            await self._run(lambda: self._registry.renew(lease))
            await self._run(lambda: self._topics.report(self._topic, self._partition, standing))
        except LeaseLostError:
            raise
        except RegistryError as error:
            if not self._away:
                log.warning("topic %s goes on without the registry: %s", self._topic, error)
            self._away = True
        else:
            self._away = False

    async def ended(self) -> bool:
        """Whether the driver has said that the topic has come to its end."""
        try:
            return (await self._run(self._registry.fleet)).get(ENDED) == "yes"
        except RegistryError:
            return False

    async def release(self) -> None:
        """Give the lease back, as far as the registry answers; the last call."""
        lease = self.current
        if lease is not None:
            with contextlib.suppress(RegistryError):
                await self._run(lambda: self._registry.release(lease))
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


ENDED = "ended"
"""What a driver publishes for its topic's publishers, ``yes`` once the topic has come to its end."""
