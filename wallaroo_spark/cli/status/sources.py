"""The options by which ``status``, ``streams``, ``top`` and ``list`` find a receiver, and what they read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from wallaroo_spark.observe.collect import RegistryCollector
    from wallaroo_spark.observe.receiver import SinkStatus, TopicStatus

F = TypeVar("F", bound=Callable[..., Any])

ATTEMPTS = 2
"""Attempts to reach the registry: few, because a person waits for the answer."""
WIDE = 1000
"""Columns of output that goes to no terminal: nothing is wrapped there."""


def registry_options(command: F) -> F:
    """Add the options that name a registry, and how workers are verified."""
    authority = "PEM file of the authority of the workers' certificates."
    verify = "The workers use TLS; verify them with the authorities that this system trusts."
    redis = "The Redis of receivers and topics; also env:NAME or file:PATH."
    command = click.option("--tls-ca", default="", metavar="FILE", help=authority)(command)
    command = click.option("--tls", is_flag=True, help=verify)(command)
    return click.option("--registry", default="", metavar="URL", help=redis)(command)


def receiver_option(command: F) -> F:
    """Add the option that names the receiver."""
    return click.option("--receiver", default="", metavar="NAME", help="The receiver's name.")(command)


def need(registry: str, receiver: str) -> None:
    """Refuse a call without a registry or without a receiver."""
    if not registry or not receiver:
        raise click.UsageError(
            "give --registry URL and --receiver NAME, or set WALLAROO_REGISTRY and WALLAROO_RECEIVER, or use --context"
        )


@contextlib.contextmanager
def collector(registry: str, receiver: str, tls: bool, tls_ca: str) -> Iterator[RegistryCollector]:
    """The collector of a receiver's status."""
    from wallaroo_spark.inner.client import Trust
    from wallaroo_spark.observe.collect import RegistryCollector
    from wallaroo_spark.registry import Registry
    from wallaroo_spark.transport import read_authority

    trust = Trust(read_authority(tls_ca) if tls_ca else b"") if tls or tls_ca else None
    with Registry(registry, receiver, attempts=ATTEMPTS) as found, RegistryCollector(found, receiver, trust) as made:
        yield made


def console() -> Console:
    """Where tables are printed. Output to a program or a file is not wrapped at the width of a terminal."""
    from rich.console import Console

    found = Console(highlight=False, markup=False)
    return found if found.is_terminal else Console(highlight=False, markup=False, width=WIDE)


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
