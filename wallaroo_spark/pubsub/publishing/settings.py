"""The settings of a topic, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.pubsub.publishing.publication import MAX_SUBSCRIBER_BYTES, MAX_SUBSCRIBERS, RETAIN
from wallaroo_spark.pubsub.topic_catalog import LEASE_SECONDS, checked_name
from wallaroo_spark.runtime.listening import check_listening, listen_rows
from wallaroo_spark.settings import Kind, check_all, row, setting

_LISTEN = listen_rows("publisher", "subscriber")


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """The settings of :class:`~wallaroo_spark.pubsub.Topic`."""

    spark: Any = field(kw_only=False, repr=False, metadata=row(Kind.OBJECT))
    """Spark session of the query."""
    name: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Name of the topic: 1 to 100 letters, digits, dots, dashes and underscores."""
    checkpoint: str = field(metadata=row(Kind.TEXT))
    """Checkpoint location of the query whose batches are published. Every executor must reach it."""
    registry: str = setting("embedded", Kind.TEXT, secret=True)
    """Redis URL, also `env:NAME` or `file:PATH`; or `embedded`, to start one for this machine alone. A receiver's
    URL is its `registry_url`."""
    partitions: int = setting(1, Kind.COUNT, minimum=1)
    """Number of publishers; each takes one task slot for as long as the topic runs."""
    pairs: bool = setting(False, Kind.FLAG)
    """Whether times are pairs (batch, value of a column) instead of batches alone."""
    cookie: str = setting("", Kind.TEXT, secret=True)
    """Cookie that subscribers must present; also `env:NAME` or `file:PATH`."""
    host: str = setting(**_LISTEN["host"])
    port: int = setting(**_LISTEN["port"])
    advertise: str = setting(**_LISTEN["advertise"])
    retain: int = setting(RETAIN, Kind.COUNT, minimum=1)
    """Number of newest batches retained for subscribers that reconnect."""
    max_subscriber_bytes: int = setting(MAX_SUBSCRIBER_BYTES, Kind.BYTES, minimum=1)
    """A subscriber is cut off when more than this waits for it, in more than one batch."""
    max_subscribers: int = setting(MAX_SUBSCRIBERS, Kind.COUNT, minimum=0)
    """Maximum number of subscribers of a publisher."""
    lease_seconds: float = setting(LEASE_SECONDS, Kind.SECONDS, minimum=0.001)
    """Time after which a partition's lease expires unless renewed."""
    handshake_timeout: float = setting(10.0, Kind.SECONDS, minimum=0.001)
    """Longest wait for a subscriber's hello."""
    tls_certificate: str = setting(**_LISTEN["tls_certificate"])
    tls_key: str = setting(**_LISTEN["tls_key"])
    tls_ca: str = setting(**_LISTEN["tls_ca"])

    def __post_init__(self) -> None:
        checked_name(self.name)
        check_all(self, f"topic {self.name!r}: ")
        check_listening(self, f"topic {self.name!r}", self.advertise)
