"""The settings of a topic, as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.pubsub.publishing.publication import MAX_SUBSCRIBER_BYTES, MAX_SUBSCRIBERS
from wallaroo_spark.pubsub.publishing.topic_log import RETAIN
from wallaroo_spark.pubsub.topic_catalog import LEASE_SECONDS, checked_name
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.transport import advertised


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """The settings of :class:`~wallaroo_spark.pubsub.Topic`."""

    spark: Any = field(kw_only=False, repr=False, metadata=row(Kind.OBJECT, "Spark session of the query."))
    name: str = field(
        kw_only=False,
        metadata=row(Kind.TEXT, "Name of the topic: 1 to 100 letters, digits, dots, dashes and underscores."),
    )
    checkpoint: str = field(
        metadata=row(
            Kind.TEXT,
            "Checkpoint location of the query whose batches are published. Every executor must reach it.",
        )
    )
    registry: str = setting(
        "embedded",
        Kind.TEXT,
        "Redis URL, also `env:NAME` or `file:PATH`; or `embedded`, to start one for this machine alone. A "
        "receiver's URL is its `registry_url`.",
        secret=True,
    )
    partitions: int = setting(
        1, Kind.COUNT, "Number of publishers; each takes one task slot for as long as the topic runs.", minimum=1
    )
    pairs: bool = setting(
        False, Kind.FLAG, "Whether times are pairs (batch, value of a column) instead of batches alone."
    )
    cookie: str = setting(
        "", Kind.TEXT, "Cookie that subscribers must present; also `env:NAME` or `file:PATH`.", secret=True
    )
    host: str = setting(
        "", Kind.TEXT, "Address that publishers bind. Empty: loopback in local mode, every interface on a cluster."
    )
    port: int = setting(
        0, Kind.COUNT, "Publisher p listens on port + p; 0 lets the system choose.", minimum=0, maximum=65_535
    )
    advertise: str = setting(
        "",
        Kind.TEXT,
        "Host name or address for subscribers, also with a port; {slot} and {port} stand for p and its port. "
        "Empty: detected by the publisher.",
    )
    retain: int = setting(
        RETAIN, Kind.COUNT, "Number of newest batches retained for subscribers that reconnect.", minimum=1
    )
    max_subscriber_bytes: int = setting(
        MAX_SUBSCRIBER_BYTES,
        Kind.BYTES,
        "A subscriber is cut off when more than this waits for it, in more than one batch.",
        minimum=1,
    )
    max_subscribers: int = setting(
        MAX_SUBSCRIBERS, Kind.COUNT, "Maximum number of subscribers of a publisher.", minimum=0
    )
    lease_seconds: float = setting(
        LEASE_SECONDS, Kind.SECONDS, "Time after which a partition's lease expires unless renewed.", minimum=0.001
    )
    handshake_timeout: float = setting(10.0, Kind.SECONDS, "Longest wait for a subscriber's hello.", minimum=0.001)
    tls_certificate: str = setting(
        "", Kind.TEXT, "PEM file, on every executor, with the certificate chain that publishers present; turns TLS on."
    )
    tls_key: str = setting("", Kind.TEXT, "PEM file, on every executor, with the key of `tls_certificate`.")
    tls_ca: str = setting(
        "",
        Kind.TEXT,
        "PEM file, on every executor, of the authority that subscribers' certificates must come from; every subscriber "
        "must present one.",
    )

    def __post_init__(self) -> None:
        checked_name(self.name)
        check_all(self, f"topic {self.name!r}: ")
        if self.advertise:
            advertised(self.advertise, 0, 1)
        if bool(self.tls_key) != bool(self.tls_certificate) or (self.tls_ca and not self.tls_certificate):
            raise ConfigurationError(
                f"topic {self.name!r}: tls_certificate and tls_key go together, and tls_ca needs both",
                code="options-conflict",
            )
