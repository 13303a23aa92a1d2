"""The settings of a subscription and of a topic as a source, as tables, and the protocol of the catalog they use."""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from wallaroo_spark.options import resolve_secret
from wallaroo_spark.pubsub.messages import MAX_MESSAGE_BYTES
from wallaroo_spark.pubsub.subscribing.merger import MAX_HELD_BYTES
from wallaroo_spark.pubsub.times import Lost, Position, Time, check
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.transport import client_context

VALUES = ("json", "arrow")
"""The encodings of a message of :class:`TopicSource`."""


class TopicDescription(Protocol):
    """The description of a topic."""

    @property
    def partitions(self) -> int:
        """Number of publishers."""

    @property
    def identity(self) -> str:
        """Identity of the topic's history."""

    @property
    def product(self) -> bool:
        """Whether its times are pairs."""


class PartitionAddress(Protocol):
    """The publisher of a partition."""

    @property
    def address(self) -> str:
        """Its ``host:port``."""


class Catalog(Protocol):
    """The lookup of topics. Every call blocks and may raise :class:`RegistryError`."""

    def find(self, name: str) -> TopicDescription | None:
        """The description of a topic; None if no topic of that name runs."""

    def served(self, name: str) -> Mapping[int, PartitionAddress]:
        """The publishers of the topic's partitions, by partition."""


@dataclass(frozen=True, kw_only=True)
class FollowingSettings:
    """The settings of everything that follows a topic."""

    topic: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Name of the topic."""
    registry: str | Catalog = field(repr=False, metadata=row(Kind.OBJECT, secret=True))
    """Redis URL that the topic was started with; also `env:NAME` or `file:PATH`."""
    cookie: str = setting("", Kind.TEXT, secret=True)
    """The topic's cookie; also `env:NAME` or `file:PATH`."""
    name: str = setting("", Kind.TEXT)
    """Name of this subscriber in the publishers' logs. Empty: its host and process."""
    wait: float = setting(0.0, Kind.SECONDS, minimum=0)
    """How long to wait for a topic that does not run yet."""
    lost_after: float = setting(60.0, Kind.SECONDS, minimum=0)
    """How long to retry a lost partition before an error is raised; a running attempt is completed first."""
    max_held_bytes: int = setting(MAX_HELD_BYTES, Kind.BYTES, minimum=0)
    """Approximate limit of data held for incomplete epochs; above it only the partitions that the others wait for
    are read."""
    max_message_bytes: int = setting(MAX_MESSAGE_BYTES, Kind.BYTES, minimum=1)
    """Longest message accepted. Publishers cut rows into messages of about 4 MiB, so only longer rows need more."""
    tls: bool = setting(False, Kind.FLAG)
    """Whether to use TLS; any of the following settings turns it on too."""
    tls_ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the publishers' certificates. Empty: the authorities that the system trusts."""
    tls_certificate: str = setting("", Kind.TEXT)
    """PEM file of the certificate to present."""
    tls_key: str = setting("", Kind.TEXT)
    """PEM file with the key of `tls_certificate`."""
    on_lost: Callable[[Lost], None] | None = setting(None, Kind.OBJECT)
    """Function to call with each failure to reach a partition."""

    def __post_init__(self) -> None:
        check_all(self, "option ")

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS. Raises :class:`ConfigurationError` for unusable files."""
        if not (self.tls or self.tls_ca or self.tls_certificate or self.tls_key):
            return None
        return client_context(self.tls_ca, self.tls_certificate, self.tls_key)


@dataclass(frozen=True, kw_only=True)
class SubscriptionSettings(FollowingSettings):
    """The settings of ``subscribe``."""

    atomic: bool = setting(True, Kind.FLAG)
    """Whether epochs are delivered whole; False delivers rows on arrival, without a filter."""
    beyond: Time | tuple[()] = setting((), Kind.OBJECT)
    """Drop rows at or before this time. Empty: no limit."""
    resume: Position | None = setting(None, Kind.OBJECT)
    """Continue from the `position` of an earlier subscription. None: from the next whole epoch."""
    reopen: bool = setting(False, Kind.FLAG)
    """Whether to wait for a topic that has ended as for one whose partitions are lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beyond != ():
            check(self.beyond)

    def resolved(self) -> Self:
        """A copy with the cookie resolved from ``env:`` or ``file:``, and with a default name."""
        name = self.name or f"{socket.gethostname()}/{os.getpid()}"
        return dataclasses.replace(self, cookie=resolve_secret(self.cookie), name=name)


@dataclass(frozen=True, kw_only=True)
class TopicSourceSettings(FollowingSettings):
    """The settings of ``TopicSource``."""

    value: str = setting("json", Kind.TEXT, choices=VALUES)
    """Content of a message: a row as a JSON object, or some rows of an epoch as an Arrow IPC stream."""
    reopen: bool = setting(True, Kind.FLAG)
    """Whether to wait for a topic that has ended; False: its end is the end of the source."""
