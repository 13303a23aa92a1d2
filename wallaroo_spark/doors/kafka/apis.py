"""The requests that are served, with their versions and bodies: one row for each.

The versions, and why each is listed: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from wallaroo_spark.doors.kafka.wire import WireField, WireMessage


class Api(IntEnum):
    """The keys of requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    SASL_AUTHENTICATE = 36


class Code(IntEnum):
    """The error codes that answers contain, by Kafka's names and numbers."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    CORRUPT_MESSAGE = 2
    INVALID_TOPIC = 17
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE = 45
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    UNSUPPORTED_COMPRESSION = 76
    INVALID_RECORD = 87


REFUSALS = {
    Code.UNKNOWN_TOPIC_OR_PARTITION: "kafka-unknown-topic-or-partition",
    Code.NOT_LEADER_OR_FOLLOWER: "kafka-not-leader-or-follower",
    Code.REQUEST_TIMED_OUT: "kafka-request-timed-out",
    Code.MESSAGE_TOO_LARGE: "kafka-message-too-large",
    Code.CORRUPT_MESSAGE: "kafka-corrupt-message",
    Code.INVALID_TOPIC: "kafka-invalid-topic",
    Code.INVALID_REQUIRED_ACKS: "kafka-invalid-required-acks",
    Code.TOPIC_AUTHORIZATION_FAILED: "kafka-topic-authorization-failed",
    Code.UNSUPPORTED_SASL_MECHANISM: "kafka-unsupported-sasl-mechanism",
    Code.UNSUPPORTED_VERSION: "kafka-unsupported-version",
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: "kafka-unsupported-for-message-format",
    Code.OUT_OF_ORDER_SEQUENCE: "kafka-out-of-order-sequence",
    Code.INVALID_PRODUCER_EPOCH: "kafka-invalid-producer-epoch",
    Code.SASL_AUTHENTICATION_FAILED: "kafka-sasl-authentication-failed",
    Code.UNKNOWN_PRODUCER_ID: "kafka-unknown-producer-id",
    Code.UNSUPPORTED_COMPRESSION: "kafka-unsupported-compression",
    Code.INVALID_RECORD: "kafka-invalid-record",
}
"""The codes that requests are refused with, by the names that they have in status, metrics and ``docs/errors.md``."""


@dataclass(frozen=True)
class ServedApi:
    """One request with its answer."""

    oldest: int
    """The oldest version that is served."""
    newest: int
    """The newest version that is served."""
    request: WireMessage
    response: WireMessage
    listed: int = -1
    """The oldest version that is listed, where it is older than the oldest that is served."""
    small: bool = True
    """Whether a request is short, so that a longer one is refused unread."""

    @property
    def listed_from(self) -> int:
        """The oldest version that clients are told."""
        return self.oldest if self.listed < 0 else self.listed


def _array(name: str, *fields: WireField, since: int = 0, until: int = 1 << 15, nullable: int = 1 << 15) -> WireField:
    return WireField(name, fields, since, until, array=True, nullable=nullable)


_F = WireField
_THROTTLE = _F("throttle", "i32")

SERVED: dict[Api, ServedApi] = {
    Api.PRODUCE: ServedApi(
        3,
        9,
        WireMessage(
            (
                _F("transactional_id", "text", nullable=3),
                _F("acks", "i16"),
                _F("timeout", "i32"),
                _array(
                    "topics",
                    _F("name", "text"),
                    _array("partitions", _F("index", "i32"), _F("records", "bytes", nullable=0)),
                ),
            ),
            flexible=9,
        ),
        WireMessage(
            (
                _array(
                    "topics",
                    _F("name", "text"),
                    _array(
                        "partitions",
                        _F("index", "i32"),
                        _F("error", "i16"),
                        _F("base_offset", "i64"),
                        _F("log_append_time", "i64"),
                        _F("log_start_offset", "i64", since=5),
                        _array("record_errors", _F("index", "i32"), _F("message", "text", nullable=8), since=8),
                        _F("message", "text", since=8, nullable=8),
                    ),
                ),
                _THROTTLE,
            ),
            flexible=9,
        ),
        listed=0,
        small=False,
    ),
    Api.FETCH: ServedApi(
        4,
        12,
        WireMessage(
            (
                _F("replica", "i32"),
                _F("max_wait", "i32"),
                _F("min_bytes", "i32"),
                _F("max_bytes", "i32"),
                _F("isolation", "i8"),
                _F("session", "i32", since=7),
                _F("session_epoch", "i32", since=7),
                _array(
                    "topics",
                    _F("name", "text"),
                    _array(
                        "partitions",
                        _F("index", "i32"),
                        _F("leader_epoch", "i32", since=9),
                        _F("offset", "i64"),
                        _F("last_epoch", "i32", since=12),
                        _F("log_start_offset", "i64", since=5),
                        _F("max_bytes", "i32"),
                    ),
                ),
                _array("forgotten", _F("name", "text"), _F("partitions", "i32", array=True), since=7),
                _F("rack", "text", since=11),
            ),
            flexible=12,
        ),
        WireMessage(
            (
                _THROTTLE,
                _F("error", "i16", since=7),
                _F("session", "i32", since=7),
                _array(
                    "topics",
                    _F("name", "text"),
                    _array(
                        "partitions",
                        _F("index", "i32"),
                        _F("error", "i16"),
                        _F("high_watermark", "i64"),
                        _F("last_stable_offset", "i64"),
                        _F("log_start_offset", "i64", since=5),
                        _array("aborted", _F("producer", "i64"), _F("first", "i64"), nullable=4),
                        _F("preferred", "i32", since=11),
                        _F("records", "bytes", nullable=0),
                    ),
                ),
            ),
            flexible=12,
        ),
    ),
    Api.LIST_OFFSETS: ServedApi(
        1,
        7,
        WireMessage(
            (
                _F("replica", "i32"),
                _F("isolation", "i8", since=2),
                _array(
                    "topics",
                    _F("name", "text"),
                    _array(
                        "partitions",
                        _F("index", "i32"),
                        _F("leader_epoch", "i32", since=4),
                        _F("timestamp", "i64"),
                    ),
                ),
            ),
            flexible=6,
        ),
        WireMessage(
            (
                _F("throttle", "i32", since=2),
                _array(
                    "topics",
                    _F("name", "text"),
                    _array(
                        "partitions",
                        _F("index", "i32"),
                        _F("error", "i16"),
                        _F("timestamp", "i64"),
                        _F("offset", "i64"),
                        _F("leader_epoch", "i32", since=4),
                    ),
                ),
            ),
            flexible=6,
        ),
    ),
    Api.METADATA: ServedApi(
        1,
        9,
        WireMessage(
            (
                _array("topics", _F("name", "text"), nullable=1),
                _F("create", "bool", since=4),
                _F("with_cluster_operations", "bool", since=8),
                _F("with_topic_operations", "bool", since=8),
            ),
            flexible=9,
        ),
        WireMessage(
            (
                _F("throttle", "i32", since=3),
                _array("nodes", _F("id", "i32"), _F("host", "text"), _F("port", "i32"), _F("rack", "text", nullable=1)),
                _F("cluster", "text", since=2, nullable=2),
                _F("controller", "i32"),
                _array(
                    "topics",
                    _F("error", "i16"),
                    _F("name", "text"),
                    _F("internal", "bool"),
                    _array(
                        "partitions",
                        _F("error", "i16"),
                        _F("index", "i32"),
                        _F("leader", "i32"),
                        _F("leader_epoch", "i32", since=7),
                        _F("replicas", "i32", array=True),
                        _F("in_sync", "i32", array=True),
                        _F("offline", "i32", since=5, array=True),
                    ),
                    _F("operations", "i32", since=8),
                ),
                _F("operations", "i32", since=8),
            ),
            flexible=9,
        ),
    ),
    Api.FIND_COORDINATOR: ServedApi(
        0,
        4,
        WireMessage(
            (
                _F("key", "text", until=3),
                _F("kind", "i8", since=1),
                _F("keys", "text", since=4, array=True),
            ),
            flexible=3,
        ),
        WireMessage(
            (
                _F("throttle", "i32", since=1),
                _F("error", "i16", until=3),
                _F("message", "text", since=1, until=3, nullable=1),
                _F("node", "i32", until=3),
                _F("host", "text", until=3),
                _F("port", "i32", until=3),
                _array(
                    "coordinators",
                    _F("key", "text"),
                    _F("node", "i32"),
                    _F("host", "text"),
                    _F("port", "i32"),
                    _F("error", "i16"),
                    _F("message", "text", nullable=4),
                    since=4,
                ),
            ),
            flexible=3,
        ),
    ),
    Api.SASL_HANDSHAKE: ServedApi(
        0,
        1,
        WireMessage((_F("mechanism", "text"),)),
        WireMessage((_F("error", "i16"), _F("mechanisms", "text", array=True))),
    ),
    Api.API_VERSIONS: ServedApi(
        0,
        4,
        WireMessage((_F("software", "text", since=3), _F("software_version", "text", since=3)), flexible=3),
        WireMessage(
            (
                _F("error", "i16"),
                _array("apis", _F("key", "i16"), _F("oldest", "i16"), _F("newest", "i16")),
                _F("throttle", "i32", since=1),
            ),
            flexible=3,
        ),
    ),
    Api.INIT_PRODUCER_ID: ServedApi(
        0,
        4,
        WireMessage(
            (
                _F("transactional_id", "text", nullable=0),
                _F("timeout", "i32"),
                _F("producer", "i64", since=3),
                _F("epoch", "i16", since=3),
            ),
            flexible=2,
        ),
        WireMessage((_THROTTLE, _F("error", "i16"), _F("producer", "i64"), _F("epoch", "i16")), flexible=2),
    ),
    Api.SASL_AUTHENTICATE: ServedApi(
        0,
        2,
        WireMessage((_F("token", "bytes"),), flexible=2),
        WireMessage(
            (
                _F("error", "i16"),
                _F("message", "text", nullable=0),
                _F("token", "bytes"),
                _F("lifetime", "i64", since=1),
            ),
            flexible=2,
        ),
    ),
}
