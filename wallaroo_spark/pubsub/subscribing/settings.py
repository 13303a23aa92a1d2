"""The settings of a subscription and of a topic as a source, as tables; and what both ask of the catalog of topics."""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from wallaroo_spark.options import resolve_secret
from wallaroo_spark.pubsub.items import Lost, Position
from wallaroo_spark.pubsub.messages import MAX_MESSAGE_BYTES
from wallaroo_spark.pubsub.subscribing.merger import MAX_HELD_BYTES
from wallaroo_spark.pubsub.times import Time, check
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.transport import client_context

VALUES = ("json", "arrow")
"""The forms of a message of a topic as a source."""


class TopicDescription(Protocol):
    """The description of a topic."""

    @property
    def partitions(self) -> int:
        """The number of its publishers."""

    @property
    def identity(self) -> str:
        """The name of its history."""

    @property
    def product(self) -> bool:
        """Whether its times are pairs."""


class PartitionAddress(Protocol):
    """Where a partition is served."""

    @property
    def address(self) -> str:
        """``host:port``."""


class Catalog(Protocol):
    """Where topics are looked up; every call blocks, and may raise :class:`RegistryError`."""

    def find(self, name: str) -> TopicDescription | None:
        """The description of a topic; None if there is no topic of that name."""

    def served(self, name: str) -> Mapping[int, PartitionAddress]:
        """Where the partitions of a topic are served now."""


@dataclass(frozen=True, kw_only=True)
class FollowingSettings:
    """The settings of everything that follows a topic."""

    topic: str = field(kw_only=False, metadata=row(Kind.TEXT, "Name of the topic."))
    registry: str | Catalog = field(
        repr=False,
        metadata=row(
            Kind.OBJECT, "Redis URL that the topic was started with; also `env:NAME` or `file:PATH`.", secret=True
        ),
    )
    cookie: str = setting("", Kind.TEXT, "The topic's cookie; also `env:NAME` or `file:PATH`.", secret=True)
    name: str = setting("", Kind.TEXT, "Name of this subscriber in the publishers' logs. Empty: its host and process.")
    wait: float = setting(0.0, Kind.SECONDS, "How long to wait for a topic that is not there yet.", minimum=0)
    lost_after: float = setting(
        60.0,
        Kind.SECONDS,
        "How long to look for a partition that is lost, before an error is raised.",
        minimum=0,
    )
    max_held_bytes: int = setting(
        MAX_HELD_BYTES,
        Kind.BYTES,
        "About how much to hold for epochs that are not whole; above it only the partitions that the others wait for "
        "are read.",
        minimum=0,
    )
    max_message_bytes: int = setting(
        MAX_MESSAGE_BYTES,
        Kind.BYTES,
        "Longest message accepted. Publishers cut rows into messages of about 4 MiB, so only longer rows need more.",
        minimum=1,
    )
    tls: bool = setting(False, Kind.FLAG, "Whether to use TLS; any of the following settings turns it on too.")
    tls_ca: str = setting(
        "",
        Kind.TEXT,
        "PEM file of the authority of the publishers' certificates. Empty: the authorities that the system trusts.",
    )
    tls_certificate: str = setting("", Kind.TEXT, "PEM file of the certificate to present.")
    tls_key: str = setting("", Kind.TEXT, "PEM file with the key of `tls_certificate`.")
    on_lost: Callable[[Lost], None] | None = setting(
        None, Kind.OBJECT, "Function to call with each failure to reach a partition."
    )

    def __post_init__(self) -> None:
        check_all(self, "option ")

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS. Raises :class:`ConfigurationError` for files that cannot be used."""
        if not (self.tls or self.tls_ca or self.tls_certificate or self.tls_key):
            return None
        return client_context(self.tls_ca, self.tls_certificate, self.tls_key)


@dataclass(frozen=True, kw_only=True)
class SubscriptionSettings(FollowingSettings):
    """The settings of ``subscribe``."""

    atomic: bool = setting(
        True, Kind.FLAG, "Whether epochs are given whole; False gives rows as they come, without any filter."
    )
    beyond: Time | tuple[()] = setting(
        (), Kind.OBJECT, "Drop rows at or before this time. Empty: drop none for that reason."
    )
    resume: Position | None = setting(
        None, Kind.OBJECT, "Go on from the `position` of an earlier subscription. None: from the next whole epoch."
    )
    reopen: bool = setting(
        False, Kind.FLAG, "Whether to wait for a topic that has ended as for one whose partitions are lost."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beyond != ():
            check(self.beyond)

    def resolved(self) -> Self:
        """The same settings with the cookie itself in place of ``env:`` or ``file:``, and with a name."""
        name = self.name or f"{socket.gethostname()}/{os.getpid()}"
        return dataclasses.replace(self, cookie=resolve_secret(self.cookie), name=name)


@dataclass(frozen=True, kw_only=True)
class TopicSourceSettings(FollowingSettings):
    """The settings of ``TopicSource``."""

    value: str = setting(
        "json",
        Kind.TEXT,
        "What a message holds: a row as a JSON object, or some rows of an epoch as an Arrow IPC stream.",
        choices=VALUES,
    )
    reopen: bool = setting(
        True,
        Kind.FLAG,
        "Whether to wait for a topic that has ended; False: its end is the end of the source.",
    )
