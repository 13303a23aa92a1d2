"""The settings of the sinks, a table for each.

Parameters, docstrings, checks and the tables in ``docs/sinks.md`` come from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.sinks.interface import checked_name

FORMATS = ("parquet", "json", "arrow")
"""Formats of ``sinks.files``; also the suffixes of its files."""
AUTO, TWO_PHASE, IDEMPOTENT = MODES = ("auto", "two-phase", "idempotent")
"""Modes in which ``sinks.postgres`` prepares rows."""
ENCODINGS = ("value", "json")
"""Encodings of a row in ``sinks.connector``."""
EVENT_FORMATS = ("columns", "cloudevents")
"""Formats of the rows of ``sinks.stream``."""
STARTS = ("log", "sink")
"""Starting points of an output of ``sinks.connector`` that the decision log does not know."""
KAFKA_OPTIONS_OF_OURS = (
    "transactional.id",
    "transaction.timeout.ms",
    "isolation.level",
    "enable.idempotence",
    "group.id",
)
"""Settings of librdkafka that ``sinks.kafka`` sets itself."""

_CHECKPOINT = "The query's own checkpoint location; the decision log is kept beside it."
_NAME = "Name of this sink. No other query may use it at the same far end."


@dataclass(frozen=True, kw_only=True)
class SinkSettings:
    """The settings that every sink has."""

    name: str = field(metadata=row(Kind.TEXT, _NAME))

    def __post_init__(self) -> None:
        checked_name(self.name)
        check_all(self, f"sink {self.name}: ")


@dataclass(frozen=True, kw_only=True)
class FilesSettings(SinkSettings):
    """The settings of ``sinks.files``."""

    path: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Folder of the batches' folders: local, or a URI of file, hdfs or viewfs. Every executor must reach it."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    format: str = setting("parquet", Kind.TEXT, choices=FORMATS)
    """Format of the files; json has a line for each row, arrow is Arrow's IPC file format."""


@dataclass(frozen=True, kw_only=True)
class DeltaSettings(SinkSettings):
    """The settings of ``sinks.delta``."""

    path: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Folder of the table: local, or a URI of s3a. Every executor must reach it."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    partition_by: Sequence[str] = setting((), Kind.NAMES)
    """Columns that divide a table which the sink creates: strings, integers, dates or booleans."""


@dataclass(frozen=True, kw_only=True)
class IcebergSettings(SinkSettings):
    """The settings of ``sinks.iceberg``."""

    table: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Table to append to, as `namespace.name`. Every executor must reach its files."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    catalog: str = setting("default", Kind.TEXT)
    """Name of the catalog, as `pyiceberg` knows it."""
    properties: Mapping[str, str] | None = setting(None, Kind.OBJECT, secret=True)
    """Properties of the catalog, such as `type` and `uri`, beside those of the file `.pyiceberg.yaml`; a value may be
    `env:NAME`."""


@dataclass(frozen=True, kw_only=True)
class PostgresSettings(SinkSettings):
    """The settings of :class:`~wallaroo_spark.sinks.stores.postgres.PostgresSink`."""

    dsn: str = field(kw_only=False, repr=False, metadata=row(Kind.TEXT, secret=True))
    """URL or connection string of libpq, or `env:NAME` or `file:PATH` of one."""
    table: str = field(metadata=row(Kind.TEXT))
    """Table to insert into: `name` or `schema.name`, quoted as in SQL where necessary."""
    mode: str = setting(AUTO, Kind.TEXT, choices=MODES)
    """two-phase prepares the rows in the table itself, and needs `max_prepared_transactions` of the server to be
    above the number of partitions of a batch; readers may see one partition of a batch before another. idempotent
    copies the rows to staging tables, and one transaction moves a whole batch. auto is two-phase where the server
    allows it, otherwise idempotent."""
    lock_timeout: float = setting(30.0, Kind.SECONDS, minimum=0)
    """Longest wait for rows that other transactions have locked."""
    timeout: float = setting(10.0, Kind.SECONDS, minimum=0)
    """Longest wait for a connection."""


@dataclass(frozen=True, kw_only=True)
class PostgresWriterSettings(PostgresSettings):
    """The settings of ``sinks.postgres``."""

    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))


@dataclass(frozen=True, kw_only=True)
class SqlSettings(SinkSettings):
    """The settings of ``sinks.sql``."""

    url: str = field(kw_only=False, repr=False, metadata=row(Kind.TEXT, secret=True))
    """URL of SQLAlchemy, such as mysql+pymysql://user:password@host:3306/database, or `env:NAME` or `file:PATH` of
    one. Only the driver uses it."""
    table: str = field(metadata=row(Kind.TEXT))
    """Table to insert into: `name` or `schema.name`, without quotes."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    lock_timeout: float = setting(30.0, Kind.SECONDS, minimum=0)
    """Longest wait for what other sessions have locked, in MySQL, MariaDB, PostgreSQL and SQLite."""
    timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """Longest wait for a connection, and in MySQL and MariaDB for an answer; make it longer than `lock_timeout`."""


@dataclass(frozen=True, kw_only=True)
class KafkaSettings(SinkSettings):
    """The settings of ``sinks.kafka``."""

    bootstrap: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Addresses of brokers, host:port, separated by commas."""
    topic: str = field(metadata=row(Kind.TEXT))
    """Topic to produce to."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    options: Mapping[str, str] | None = setting(None, Kind.OBJECT, secret=True)
    """Settings of librdkafka, such as `security.protocol`; a value may be `env:NAME` or `file:PATH`."""
    timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """Longest wait for an answer of the brokers."""
    transaction_timeout: float = setting(300.0, Kind.SECONDS, minimum=0)
    """Longest time to produce a batch; the broker's `transaction.max.timeout.ms` limits it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in self.options or {}:
            if option in KAFKA_OPTIONS_OF_OURS:
                raise ConfigurationError(
                    f"sink {self.name}: option {option} is set by the sink; leave it out",
                    code="options-conflict",
                    option=option,
                )


@dataclass(frozen=True, kw_only=True)
class RedisSettings(SinkSettings):
    """The settings of ``sinks.redis``."""

    url: str = field(kw_only=False, repr=False, metadata=row(Kind.TEXT, secret=True))
    """Redis URL, or `env:NAME` or `file:PATH` of one."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    stream: str | None = setting(None, Kind.TEXT)
    """Key of the stream to append to: an entry for each row. Give this or `list`."""
    list: str | None = setting(None, Kind.TEXT)
    """Key of the list to append to: the column `value` of each row. Give this or `stream`."""
    timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """Longest wait for an answer of Redis, also for the script that moves a batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.stream) == bool(self.list):
            raise ConfigurationError(
                f"sink {self.name}: give either stream= or list=, the key in Redis that takes the rows",
                code="options-conflict",
            )


@dataclass(frozen=True, kw_only=True)
class StreamSettings:
    """The settings of ``sinks.stream``."""

    application: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Folder of the application of durable streams. Every executor must reach it."""
    stream: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Stream that takes the events, as namespace/name."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    name: str = setting("", Kind.TEXT)
    """Name of this sink, which no other query may use in the application. Empty: namespace.name of the stream."""
    format: str = setting("columns", Kind.TEXT, choices=EVENT_FORMATS)
    """Where the event of a row stands: columns is an attribute in each column and the payload in `data` or `value`;
    cloudevents is an event in the JSON format of CloudEvents in `data` or `value`."""
    type: str = setting("", Kind.TEXT)
    """Type of events that have none of their own."""
    source: str = setting("", Kind.TEXT)
    """Source of events that have none of their own, and are no message of a receiver. Empty: /sinks/ and the name."""
    datacontenttype: str = setting("", Kind.TEXT)
    """Content type of payloads in columns that have none of their own. Empty: none for binary, and text/plain for
    all others."""
    dead_letters: str = setting("", Kind.TEXT)
    """Stream for the payloads of rows that no event can be made of, each with the reason. Empty: such a row fails
    its batch, and the query."""
    timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """Longest wait of a batch for an application that is behind; then the query fails."""
    max_unread: int = setting(256 << 20, Kind.BYTES, minimum=0)
    """Bytes of earlier batches that the application has not read, beyond which a batch waits."""

    def __post_init__(self) -> None:
        checked_name(self.known_as)
        check_all(self, f"sink {self.known_as}: ")
        for stream in filter(None, (self.stream, self.dead_letters)):
            if not re.fullmatch("[^/]+/[^/]+", stream):
                raise ConfigurationError(
                    f"sink {self.known_as}: {stream!r} is no name of a stream; give namespace/name",
                    code="name-invalid",
                    name=stream,
                )

    @property
    def known_as(self) -> str:
        """The name of the sink."""
        return self.name or str(self.stream).replace("/", ".", 1)


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How connector sinks are reached. Picklable, and without a secret where ``cookie`` is ``env:`` or ``file:``."""

    cookie: str = setting("", Kind.TEXT, secret=True)
    """The sink's cookie; also `env:NAME` or `file:PATH`."""
    version: str = setting("0.0.1", Kind.TEXT)
    """The sink's protocol version."""
    tls: bool = setting(False, Kind.FLAG)
    """Whether to use TLS."""
    ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the sink's certificate, for tasks and driver; turns TLS on. Empty: the
    authorities that the system trusts."""
    certificate: str = setting("", Kind.TEXT)
    """PEM file of the certificate to present."""
    key: str = setting("", Kind.TEXT)
    """PEM file with the key of `certificate`."""
    connect_timeout: float = setting(10.0, Kind.SECONDS, minimum=0)
    """Longest time to connect."""
    answer_timeout: float = setting(60.0, Kind.SECONDS, minimum=0)
    """Longest wait for an answer, a vote included, and for the sink to read sent bytes."""
    max_frame_bytes: int = setting(4 << 20, Kind.BYTES, minimum=1 << 10)
    """Longest frame sent or accepted."""


@dataclass(frozen=True, kw_only=True)
class ConnectorSinkSettings(ConnectionSettings):
    """The settings of ``sinks.connector``."""

    address: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Address of the sink, host:port, or several separated by commas; partition p uses number p modulo their number."""
    checkpoint: str = field(metadata=row(Kind.TEXT, _CHECKPOINT))
    name: str = field(metadata=row(Kind.TEXT, f"{_NAME} It must not end in a dash and a number."))
    encode: str = setting("value", Kind.TEXT, choices=ENCODINGS)
    """Bytes of a row: value is its column `value`, a string or binary; json is all columns as Spark's `to_json`
    writes them."""
    delimiter: bytes = setting(b"\n", Kind.OBJECT)
    """Bytes at the end of each row."""
    give_up_after: float = setting(30.0, Kind.SECONDS, minimum=0)
    """How long a sink that cannot be reached is tried again."""
    start: str = setting("log", Kind.TEXT, choices=STARTS)
    """Start of an output that the decision log does not know. log: 0, and a sink that has rows under the name
    refuses; sink: the end that the sink reports."""

    def __post_init__(self) -> None:
        checked_name(self.name)
        if re.search(r"-\d+$", self.name):
            raise ConfigurationError(
                f"a connector sink is named {self.name!r}, as a partition of another would be; use a name that "
                "does not end in a dash and a number",
                code="name-invalid",
                name=self.name,
            )
        check_all(self, f"sink {self.name}: ")
