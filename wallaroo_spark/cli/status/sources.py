"""The options by which ``status``, ``streams``, ``top`` and ``list`` find a receiver, and what they read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from wallaroo_spark.inner.client import Trust
    from wallaroo_spark.observe.collect import RegistryCollector
    from wallaroo_spark.observe.receiver import SinkStatus, TopicStatus

ATTEMPTS = 2
"""Attempts to reach the registry: few, because a person waits for the answer."""


@dataclass(frozen=True)
class RegistryOptions:
    """A registry, and how the workers in it are verified.

    Options:
        --registry URL: The Redis of receivers and topics; also env:NAME or file:PATH.
        --tls: The workers use TLS; verify them with the authorities that this system trusts.
        --tls-ca FILE: PEM file of the authority of the workers' certificates.
    """

    registry: str = ""
    tls: bool = False
    tls_ca: str = ""

    @property
    def trust(self) -> Trust | None:
        """How workers are verified; None: without TLS."""
        from wallaroo_spark.inner.client import Trust
        from wallaroo_spark.transport import read_authority

        return Trust(read_authority(self.tls_ca) if self.tls_ca else b"") if self.tls or self.tls_ca else None

    @contextlib.contextmanager
    def collector_of(self, receiver: str) -> Iterator[RegistryCollector]:
        """The collector of a receiver's status."""
        from wallaroo_spark.observe.collect import RegistryCollector
        from wallaroo_spark.registry import Registry

        with (
            Registry(self.registry, receiver, attempts=ATTEMPTS) as found,
            RegistryCollector(found, receiver, self.trust) as made,
        ):
            yield made


@dataclass(frozen=True)
class ReceiverOptions(RegistryOptions):
    """A receiver in a registry.

    Options:
        --receiver NAME: The receiver's name.
    """

    receiver: str = ""

    def collector(self) -> contextlib.AbstractContextManager[RegistryCollector]:
        """The collector of its status. Raises click.UsageError without a registry or a receiver."""
        if not self.registry or not self.receiver:
            raise click.UsageError(
                "give --registry URL and --receiver NAME, or set WALLAROO_REGISTRY and WALLAROO_RECEIVER, "
                "or use --context"
            )
        return self.collector_of(self.receiver)


def topics_in(registry: str) -> tuple[TopicStatus, ...]:
    """The running topics of a registry. Raises :class:`RegistryError` when it does not answer."""
    from wallaroo_spark.observe.surroundings import topic_status
    from wallaroo_spark.pubsub.topic_catalog import TopicCatalog

    with TopicCatalog(registry, attempts=ATTEMPTS) as catalog:
        found = [topic_status(catalog, name) for name in catalog.names()]
    return tuple(topic for topic in found if topic is not None)


def sinks_in(checkpoint: str) -> tuple[SinkStatus, ...]:
    """The transactional sinks of the query with this checkpoint."""
    from wallaroo_spark.observe.receiver import SinkStatus
    from wallaroo_spark.sinks.two_phase.decision_log import sinks_of

    return tuple(SinkStatus(**sink) for sink in sinks_of(checkpoint))
