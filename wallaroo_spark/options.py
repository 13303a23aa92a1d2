"""The one table of options: the DataSource, the YAML file, the command line and the reference page all read it.

Each field of :class:`Options` is a row of the table: its Python name, default, type, unit and help. The public name is
the camelCase form, as in Spark's own sources (``max_frame_bytes`` is ``maxFrameBytes``); ``tls_key`` is ``tls.key``,
``v3_leave`` is ``v3.leave``.
Spark passes the keys of options in lower case, so names are compared without regard to case.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wallaroo_spark import settings
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import Kind, Row, setting
from wallaroo_spark.texts import nearest

_FRAME_BYTES = 256
"""Bytes of a message's frame in addition to its payload, rounded up."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options of a receiver, its workers and its source. The help text of each field is the field's documentation.

    An option that holds a secret also accepts ``env:NAME`` (an environment variable) or ``file:PATH`` (a file) in place
    of the secret. :func:`resolve_secret` reads it where it is used, and ``repr`` never shows it. The constructor raises
    :class:`ConfigurationError` for a value outside the limits of its row. Source: ``docs/options.md``.
    """

    receiver: str = setting("", Kind.TEXT)
    """Name of the receiver; the receiver's keys in the registry contain it."""
    registry: str = setting("embedded", Kind.TEXT, secret=True)
    """Redis URL (redis:// or rediss://, redis+cluster:// or rediss+cluster:// for a Redis Cluster), or 'embedded'
    to start a Redis for this machine alone."""
    workers: int = setting(2, Kind.COUNT, minimum=1)
    """Number of slots; each takes one task slot of the cluster."""
    quic: bool = setting(False, Kind.FLAG)
    """Workers also serve connectors over QUIC, at the UDP port with the number of their TCP port. It always uses TLS
    and needs tls.certificate and tls.key, and the extra quic on the driver and the executors. A worker does not ask
    connectors for certificates over QUIC, so it does not go with tls.ca. docs/protocol.md#over-quic says more."""
    host: str = setting("", Kind.TEXT)
    """Address that the workers bind. Empty: loopback in local mode, every interface on a cluster."""
    port: int = setting(0, Kind.COUNT, minimum=0, maximum=65_535)
    """Slot p listens on port + p; 0 lets the system choose."""
    advertise: str = setting("", Kind.TEXT)
    """Host name or address at which connectors reach the workers, with or without a port; {slot} and {port} are
    replaced: worker-{slot}.example.com:{port}. Empty: the worker finds its own address."""
    inner_host: str = setting("", Kind.TEXT)
    """Address that the workers bind for their inner port, which the driver and reading tasks call. Empty: the value
    of host."""
    inner_port: int = setting(0, Kind.COUNT, minimum=0, maximum=65_535)
    """The inner port of slot p is innerPort + p; 0 lets the system choose."""
    inner_advertise: str = setting("", Kind.TEXT)
    """Address at which the driver and reading tasks reach the inner port, written like advertise. Empty: the worker
    finds its own address; with TLS and advertise it is the host of advertise, because the certificate names that
    host."""
    http_port: int | None = setting(None, Kind.COUNT, minimum=0, maximum=65_535)
    """Slot p accepts HTTP requests on http.port + p; 0 lets the system choose. Without it there is no HTTP door.
    Needs a cookie or door.tokens unless the workers listen on a loopback address."""
    http_timeout: float = setting(25.0, Kind.SECONDS, minimum=0)
    """How long an HTTP request waits for its commit, before it is answered with 202 and a place to ask again."""
    http_max_body: int = setting(128 << 20, Kind.BYTES, minimum=1 << 10)
    """Longest body of an HTTP request, decompressed."""
    http_origins: tuple[str, ...] = setting((), Kind.NAMES)
    """Origins of web pages that may send to the HTTP door, such as https://shop.example.com; * allows all. A request
    of a page of another origin is refused."""
    door_replay_timeout: float = setting(45.0, Kind.SECONDS, minimum=0)
    """How long a read waits for a client of a door to send a planned range again, at most half of replayTimeout. After
    that the batch goes on without the messages, which were not answered; docs/doors.md says what that means. Behind a
    long outage some clients try to connect every 36 s only."""
    door_tokens: str = setting("", Kind.TEXT)
    """File with the tokens of doors' clients, on the hosts of the workers: a name and its token in each line. Its
    clients are then known by their tokens, and the cookie is for connectors alone. A worker reads it again when it has
    changed; docs/doors.md says more."""
    door_received: tuple[str, ...] = setting((), Kind.NAMES)
    """Streams of the HTTP door and topics of the Kafka door, as patterns such as logs.*, whose requests are answered
    when they are in the worker's memory. What was answered is lost when the worker dies."""
    kafka_port: int | None = setting(None, Kind.COUNT, minimum=1, maximum=65_535)
    """Port of the Kafka door: the nodes of slot p listen on the kafka.nodes ports from kafka.port + p * kafka.nodes on.
    Without it there is no Kafka door. Needs a cookie, which is the clients' password, or door.tokens, unless the
    workers listen on a loopback address."""
    kafka_nodes: int = setting(4, Kind.COUNT, minimum=1, maximum=32)
    """Number of nodes as which each slot appears to Kafka clients, which send to each node separately."""
    kafka_partitions: int = setting(128, Kind.COUNT, minimum=1, maximum=1024)
    """Number of partitions of each topic of the Kafka door. Partition n belongs to slot n modulo workers."""
    kafka_max_batch: int = setting((1 << 20) + 12, Kind.BYTES, minimum=1 << 10, maximum=64 << 20)
    """Longest record batch that the Kafka door accepts, as it comes. It must fit into maxFrameBytes."""
    kafka_producer_retention: float = setting(86_400.0, Kind.SECONDS, minimum=0)
    """How long a producer of the Kafka door is remembered, in each partition, after its last batch there. What an
    idempotent producer sends again later counts as new. 0: for good."""
    otlp_port: int | None = setting(None, Kind.COUNT, minimum=0, maximum=65_535)
    """Slot p accepts OpenTelemetry's logs, metrics and traces over gRPC on otlp.port + p; 0 lets the system choose.
    Without it there is no OTLP door; /v1/logs, /v1/metrics and /v1/traces of the HTTP door take them over HTTP. Needs
    a cookie or door.tokens, as a bearer token, unless the workers listen on a loopback address."""
    otlp_dedupe: float = setting(0.0, Kind.SECONDS, minimum=0)
    """How long an equal body of the same service counts as a repeat of an OTLP request that was answered. A body that
    was not answered is recognised in any case. 0: not at all."""
    cookie: str = setting("", Kind.TEXT, secret=True)
    """Shared cookie; a connector's HELLO must contain the same."""
    version: str = setting("0.0.1", Kind.TEXT)
    """Protocol version; HELLO must contain exactly this text."""
    programs: tuple[str, ...] = setting((), Kind.NAMES)
    """Program names that HELLO may contain; a connector with another name is refused. Empty: any."""
    max_frame_bytes: int = setting(4 << 20, Kind.BYTES, minimum=1 << 10)
    """Longest frame accepted, tag and body together."""
    max_sessions: int = setting(16_384, Kind.COUNT, minimum=1)
    """Most sessions that a worker serves at the same time. Each takes an open file of the worker's process, which
    raises its own limit as far as the host's hard limit allows."""
    handshake_timeout: float = setting(10.0, Kind.SECONDS, minimum=0.01)
    """Time within which a peer must send its whole HELLO and, while the worker's memory is full, the rest of a
    frame that it has begun."""
    memory_budget: int = setting(256 << 20, Kind.BYTES, minimum=1 << 20)
    """Memory in which a worker may buffer uncommitted messages, including unfinished frames."""
    credits: str = setting("adaptive", Kind.TEXT, choices=("adaptive", "fixed"))
    """How many messages connectors may send ahead: as many as the next batch needs, estimated from the query's rate
    and batch lengths (adaptive), or as many as fit into memoryBudget (fixed)."""
    replay_timeout: float = setting(120.0, Kind.SECONDS, minimum=0)
    """How long a read waits for connectors to send a planned range again."""
    message_ids: str = setting("increasing", Kind.TEXT, choices=("increasing", "opaque"))
    """Draft revisions: whether the message ids of a stream must increase until its next NOTIFY (increasing; a
    violation is answered by ERROR), or are only compared for equality (opaque)."""
    event_time_unit: str = setting("ns", Kind.TEXT, choices=("ns", "us", "ms", "s"))
    """Unit of the event times that connectors send."""
    include_boundaries: bool = setting(False, Kind.FLAG)
    """Deliver BOUNDARY messages as rows with a null value."""
    include_headers: bool = setting(False, Kind.FLAG)
    """Add the column headers: the headers of a Kafka record, as Spark's Kafka source has them; null for other rows."""
    include_corrupt: bool = setting(False, Kind.FLAG)
    """Add the column error_bytes, and deliver a Kafka record batch that cannot be read as a row with its bytes there
    and a null value. Without it such a batch is logged and left out."""
    tls_certificate: str = setting("", Kind.TEXT)
    """PEM file with the certificate chain that workers present to connectors and on their inner port. It must name
    the hosts at which a worker is reached: those of advertise and innerAdvertise, or else the address that the
    worker finds for itself."""
    tls_key: str = setting("", Kind.TEXT)
    """PEM file with the key of tls.certificate."""
    tls_ca: str = setting("", Kind.TEXT)
    """PEM file of the authority that signs the connectors' certificates. When it is given, every connector must
    present a certificate."""
    tls_workers_ca: str = setting("", Kind.TEXT)
    """PEM file of the authority that signed tls.certificate, with which the driver and reading tasks verify the
    workers' inner port. Empty: tls.ca; when that is empty too, the authorities that the system trusts."""
    tls_bind_instances: bool = setting(False, Kind.FLAG)
    """A connector's instance must be one of the names in its certificate; needs tls.ca."""
    idle_timeout: float = setting(0.0, Kind.SECONDS, minimum=0)
    """A session that has sent nothing for this long and waits for no ACK is ended; the connector may connect again.
    0: never."""
    v3_leave: str = setting("close", Kind.TEXT, choices=("close", "restart"))
    """How a worker makes a v3 connector connect again: it closes the connection (close), after which existing
    connectors reconnect, or it sends RESTART (restart), on which Wallaroo's own SDK hangs."""
    lease_seconds: float = setting(10.0, Kind.SECONDS, minimum=0.5)
    """How long a slot's lease lasts without being renewed."""
    standby: bool = setting(False, Kind.FLAG)
    """While another driver runs the receiver, a start waits with Spark started, and takes over when that driver is
    gone. Without it such a start is refused. It needs a registry that both drivers reach;
    docs/reliability.md#a-standby-driver says more."""
    instances: tuple[str, ...] = setting((), Kind.NAMES)
    """AvailableNow: connector instances that the run waits for even if they are not connected."""
    quiet_seconds: float = setting(2.0, Kind.SECONDS, minimum=0)
    """AvailableNow: a connector that has sent nothing for this long counts as having nothing more to send."""
    available_now_timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """AvailableNow: longest wait until every connector has nothing more to send."""
    stream_retention: float = setting(0.0, Kind.SECONDS, minimum=0)
    """How long a stream is remembered after its end is committed. A connector that opens the stream again later
    begins it as a new stream; docs/protocol.md says what that means. Needs messageIds=increasing. 0: for good."""
    starting_offsets: dict[str, dict[str, int]] | None = setting(None, Kind.JSON)
    """References from which a query without a checkpoint starts, by instance and stream id: {"shop-1": {"7": 1200}}."""
    max_offsets_per_trigger: int | None = setting(None, Kind.COUNT, minimum=1)
    """Most messages in a batch, divided among the streams."""
    min_offsets_per_trigger: int | None = setting(None, Kind.COUNT, minimum=1)
    """Fewest messages for which a batch is planned; see maxTriggerDelay."""
    max_trigger_delay: float = setting(900.0, Kind.SECONDS, minimum=0)
    """Longest wait for minOffsetsPerTrigger messages."""
    max_bytes_per_trigger: int | None = setting(None, Kind.BYTES, minimum=1)
    """Most payload bytes in a batch; the first message of a stream is planned even if it is larger."""
    fail_on_data_loss: bool = setting(True, Kind.FLAG)
    """Fail the query when connectors cannot send a planned range again; false logs the lost range and continues."""
    fsync: bool = setting(False, Kind.FLAG)
    """Whether a message is acknowledged only when its batch is on the disk, also what Spark writes: with it a
    machine that loses power forgets nothing that was acknowledged. For checkpoints on a local disk; others are
    durable without it, see docs/reliability.md."""
    token: str = setting("", Kind.TEXT, secret=True)
    """Secret of the workers' inner ports, known only to the driver and Spark's tasks: a program that knows it can
    make workers acknowledge messages. Empty: the receiver makes one."""
    log_level: str = setting("auto", Kind.TEXT, choices=("auto", "debug", "info", "warning", "error"))
    """Least level of the lines that workers and reading tasks write to their executor's standard error. auto:
    warning in local mode, where that is the terminal or notebook of the driver's program, and info on a cluster,
    where Spark keeps it in a file. The log of the driver is that of the program that it runs in."""
    log_format: str = setting("text", Kind.TEXT, choices=("text", "json"))
    """Format of these lines: text, or json for one JSON object in each line."""
    metrics_instances: int = setting(0, Kind.COUNT, minimum=0)
    """Number of connector instances that have metrics of their own: those that wait longest. Each instance that
    ever waits becomes a series in Prometheus."""
    trace_sample: int = setting(0, Kind.COUNT, minimum=0)
    """Each worker traces one of this number of messages, from its arrival to its acknowledgement. The driver makes
    the spans with OpenTelemetry, and needs the extra otel. 0: none."""
    status_page: str = setting("127.0.0.1:4140", Kind.TEXT)
    """Address host:port at which the driver serves the status page; when the port is taken, the next free one of 16
    is used. Port 0 lets the system choose; off: no page."""
    report: str = setting("", Kind.TEXT)
    """File of the driver to which a report of the run is written when the receiver stops: one HTML page with rates,
    latencies, deaths and options. Empty: none."""
    status_page_token: str = setting("", Kind.TEXT, secret=True)
    """Token that the status page asks for, at least 16 characters. It is needed unless statusPage is a loopback
    address."""

    def __post_init__(self) -> None:
        for row in table():
            settings.check(row, getattr(self, row.attribute), f"option {row.name}")
        if self.stream_retention and self.message_ids == "opaque":
            raise ConfigurationError(
                f"option streamRetention is {self.stream_retention:g} s, and with messageIds=opaque a stream that was "
                "forgotten cannot be told from a new one; use messageIds=increasing, or leave streamRetention at 0",
                code="options-conflict",
                option="streamRetention",
            )

        for name, port in (
            ("http.port", self.http_port),
            ("kafka.port", self.kafka_port),
            ("otlp.port", self.otlp_port),
        ):
            if port is not None and self.message_ids == "opaque":
                raise ConfigurationError(
                    f"option {name} is {port}, and the references of a door increase, which needs "
                    f"messageIds=increasing; remove {name} or messageIds=opaque",
                    code="options-conflict",
                    option=name,
                )
        if self.kafka_port is not None and self.kafka_max_batch + _FRAME_BYTES > self.max_frame_bytes:
            raise ConfigurationError(
                f"option kafka.maxBatch is {self.kafka_max_batch}, and a batch is one frame of at most "
                f"{self.max_frame_bytes} bytes (maxFrameBytes); make maxFrameBytes larger by {_FRAME_BYTES} at least",
                code="options-conflict",
                option="kafka.maxBatch",
            )

    @property
    def producer_retention(self) -> float:
        """The seconds after which streams of the Kafka door are forgotten; 0: never, as where there is no such door."""
        return 0.0 if self.kafka_port is None else self.kafka_producer_retention

    @property
    def forgets(self) -> bool:
        """Whether plans forget streams."""
        return bool(self.stream_retention or self.producer_retention)

    @classmethod
    def parse(cls, texts: Mapping[str, Any]) -> Options:
        """Read options from Spark, YAML or the command line: values by public name, the case of the name ignored.

        Raises :class:`ConfigurationError` for a name that is not in the table and for a value that cannot be read.
        """
        rows = {row.name.lower(): row for row in table()}
        values: dict[str, Any] = {}
        for name, text in texts.items():
            row = rows.get(name.lower())
            if row is None:
                near = nearest(name, [row.name for row in rows.values()])
                raise ConfigurationError(
                    f"option {name} is not known; {near or 'docs/options.md lists all options'}",
                    code="option-unknown",
                    option=name,
                )
            values[row.attribute] = read_value(row, text)
        return cls(**values)

    def to_texts(self, *, secrets: bool = True) -> dict[str, str]:
        """Return the options that differ from their defaults, by public name, as texts that :meth:`parse` can read.

        With ``secrets=False`` the secret options are left out, so that the texts may be shown.
        """
        texts = {}
        for row in table():
            value = getattr(self, row.attribute)
            if value != row.default and (secrets or not row.secret):
                texts[row.name] = _write_value(value)
        return texts


def table() -> Iterator[Row]:
    """The rows of the table, in the order in which they are documented."""
    for row in settings.rows(Options):
        yield dataclasses.replace(row, name=public_name(row.attribute))


def public_name(attribute: str) -> str:
    """The public name of an attribute: ``max_frame_bytes`` → ``maxFrameBytes``, ``tls_key`` → ``tls.key``."""
    for group in ("tls", "v3", "http", "kafka", "otlp", "door"):
        if attribute.startswith(f"{group}_"):
            return f"{group}." + public_name(attribute.removeprefix(f"{group}_"))
    head, *tail = attribute.split("_")
    return head + "".join(word.capitalize() for word in tail)


def read_value(row: Row, text: Any) -> Any:
    """Convert the text of one option to its value; a YAML value that already has the type is accepted too.

    Raises :class:`ConfigurationError` with the option, the text and the expected format.
    """
    try:
        return _READERS[row.kind](text)
    except (ValueError, TypeError, KeyError) as error:
        shown = "the value given" if row.secret else repr(text)
        raise ConfigurationError(
            f"option {row.name}: {shown} cannot be read; expected {row.kind.value}",
            code="option-unreadable",
            option=row.name,
        ) from error


def is_reference(value: str) -> bool:
    """Whether the value is ``env:NAME`` or ``file:PATH``: it only names where the secret is, so it may be shown."""
    return value.startswith(("env:", "file:"))


def resolve_secret(value: str) -> str:
    """Read the secret that ``env:NAME`` or ``file:PATH`` names; any other value is the secret itself.

    Line ends at the end of a file are not part of the secret. Raises :class:`ConfigurationError` when the variable is
    not set or the file cannot be read.
    """
    scheme, _, rest = value.partition(":")
    if scheme == "env":
        if rest not in os.environ:
            raise ConfigurationError(
                f"secret {value}: no such environment variable; set {rest}", code="secret-unavailable", variable=rest
            )
        return os.environ[rest]
    if scheme == "file":
        try:
            return Path(rest).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigurationError(
                f"secret {value}: cannot be read: {error.strerror}", code="secret-unavailable", path=rest
            ) from error
        except UnicodeDecodeError:
            raise ConfigurationError(
                f"secret {value}: the file is not UTF-8 text", code="secret-unavailable", path=rest
            ) from None
    return value


_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECOND_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _read_bytes(text: Any) -> int:
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)(?:i?b)?\s*", str(text).lower())
    if not match:
        raise ValueError(text)
    return int(match[1]) * _BYTE_UNITS[match[2]]


def _read_seconds(text: Any) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(text).lower())
    if not match:
        raise ValueError(text)
    return float(match[1]) * _SECOND_UNITS[match[2]]


def _read_flag(text: Any) -> bool:
    return {"true": True, "false": False}[str(text).strip().lower()]


def _read_names(text: Any) -> tuple[str, ...]:
    parts = text if isinstance(text, list | tuple) else str(text).split(",")
    return tuple(part.strip() for part in parts if part.strip())


def _read_json(text: Any) -> dict[str, dict[str, int]]:
    value = json.loads(text) if isinstance(text, str) else text
    return {
        str(instance): {str(int(stream)): int(reference) for stream, reference in streams.items()}
        for instance, streams in value.items()
    }


_READERS: dict[Kind, Any] = {
    Kind.TEXT: str,
    Kind.NAMES: _read_names,
    Kind.COUNT: lambda text: int(str(text).strip()),
    Kind.BYTES: _read_bytes,
    Kind.SECONDS: _read_seconds,
    Kind.FLAG: _read_flag,
    Kind.JSON: _read_json,
}


def _write_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, float):
        # _read_seconds does not accept scientific notation.
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return str(value)
