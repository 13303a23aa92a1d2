"""What a subscriber is told, and what it asks of the catalog of topics."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from wallaroo_spark.pubsub.items import Lost, Position
from wallaroo_spark.pubsub.messages import MAX_MESSAGE_BYTES
from wallaroo_spark.pubsub.subscribing.merger import MAX_HELD_BYTES
from wallaroo_spark.pubsub.times import Time

LOST_AFTER = 60.0
MAX_WAITING_BYTES = 16 << 20
"""Bytes of items that the application has not taken; above it nothing more is read."""


class TopicDescription(Protocol):
    """What a topic is."""

    @property
    def partitions(self) -> int:
        """How many publishers it has."""

    @property
    def identity(self) -> str:
        """What its history is called."""

    @property
    def product(self) -> bool:
        """Whether its times are pairs."""


class PartitionAddress(Protocol):
    """Where a partition is served."""

    @property
    def address(self) -> str:
        """``host:port``."""


class Catalog(Protocol):
    """Where topics are found; every call blocks, and may raise :class:`RegistryError`."""

    def find(self, name: str) -> TopicDescription | None:
        """What a topic is; None when there is none of that name."""

    def served(self, name: str) -> Mapping[int, PartitionAddress]:
        """Where the partitions of a topic are served now."""


@dataclass(frozen=True, kw_only=True)
class SubscriptionSettings:
    """What a subscriber wants. Times are seconds; see ``subscribe`` for what each is for."""

    topic: str
    cookie: str = field(default="", repr=False)
    subscriber: str = ""
    atomic: bool = True
    beyond: Time | tuple[()] = ()
    resume: Position | None = None
    reopen: bool = False
    wait: float = 0.0
    lost_after: float = LOST_AFTER
    tls: ssl.SSLContext | None = None
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_held_bytes: int = MAX_HELD_BYTES
    max_waiting_bytes: int = MAX_WAITING_BYTES
    on_lost: Callable[[Lost], None] | None = None
