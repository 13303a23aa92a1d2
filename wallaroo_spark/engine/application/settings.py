"""The settings of an application of durable streams, as a table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.runtime.listening import check_listening, listen_rows
from wallaroo_spark.runtime.python_tasks import FORMATS, LEVELS
from wallaroo_spark.settings import Kind, check_all, row, setting

KEEP = 64
"""Default number of the newest batches whose files are kept for gateways. A choice: a minute of short batches."""
MAX_ROWS = 100_000
"""Default limit of the events of one batch. A choice that bounds the time of a batch after a pause."""
STATUS_PAGE = "127.0.0.1:4140"
"""Default address of the page, as that of a receiver's."""
LEASE_SECONDS = 10.0
"""Default length of a gateway's lease, in seconds. A choice: the time without a service after a gateway is lost."""

_LISTEN = listen_rows("gateway", "client")


@dataclass(frozen=True, kw_only=True)
class ApplicationSettings:
    """The settings of an application."""

    spark: Any = field(kw_only=False, repr=False, metadata=row(Kind.OBJECT))
    """Spark session of the application."""
    folder: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Folder of the application: a path or a URI, as of a checkpoint. Every executor must reach it. It has the
    schema that `apply` has written."""
    name: str = setting("", Kind.TEXT)
    """Name of the application in the registry, where clients find its gateways. Empty: the last part of the folder."""
    schema: str | list[str] | tuple[str, ...] = setting((), Kind.NAMES)
    """YAML files whose documents are applied before the start, as `apply` does. Without them: the schema of the
    folder."""
    registry: str = setting("embedded", Kind.TEXT, secret=True)
    """Redis URL, also `env:NAME` or `file:PATH`; or `embedded`, to start one for this machine alone."""
    gateways: int = setting(1, Kind.COUNT, minimum=1, maximum=1000)
    """Number of gateways; each takes one task slot for as long as the application runs."""
    host: str = setting(**_LISTEN["host"])
    port: int = setting(**_LISTEN["port"])
    advertise: str = setting(**_LISTEN["advertise"])
    tls_certificate: str = setting(**_LISTEN["tls_certificate"])
    tls_key: str = setting(**_LISTEN["tls_key"])
    tls_ca: str = setting(**_LISTEN["tls_ca"])
    lease_seconds: float = setting(LEASE_SECONDS, Kind.SECONDS, minimum=0.5)
    """Time after which a gateway's lease expires unless renewed."""
    standby: bool = setting(False, Kind.FLAG)
    """Whether a start waits, with Spark started, while another driver runs the application, and takes over when that
    driver is gone. Without it such a start is refused. It needs a registry that both drivers reach."""
    max_rows: int = setting(MAX_ROWS, Kind.COUNT, minimum=1)
    """The most events of one batch."""
    state_partitions: int | None = setting(None, Kind.COUNT, minimum=1, maximum=10_000)
    """Number of tasks that share the keys of a batch. It is fixed by the first batch of the folder. Without it: the
    number of that batch, and at first the number of task slots beside the gateways, 64 at most."""
    keep: int = setting(KEEP, Kind.COUNT, minimum=2)
    """Number of the newest batches whose files are kept for gateways that lag behind."""
    move_seconds: float = setting(5.0, Kind.SECONDS, minimum=0)
    """Longest time until committed records are in the tables. The shorter it is, the more and smaller files there
    are. Consumers and pipelines do not wait for it."""
    retention_seconds: float = setting(10.0, Kind.SECONDS, minimum=1)
    """Time between two looks for records that are older than the ttl of their stream."""
    history_seconds: float | None = setting(None, Kind.SECONDS, minimum=1)
    """Time for which the history of an instance is kept after its end. Whole files are deleted, from the oldest on.
    Without it: for ever."""
    delta: bool = setting(False, Kind.FLAG)
    """Whether a log of Delta Lake is kept beside each table, for readers of Delta. Needs the extra `delta` in the
    driver's Python, and a local folder or s3a."""

    fsync: bool = setting(False, Kind.FLAG)
    """Whether nothing is answered before it is on the disk, also what Spark writes: with it a machine that loses
    power forgets nothing that was acknowledged. For folders on a local disk; others are durable without it, see
    docs/reliability.md."""

    status_page: str = setting(STATUS_PAGE, Kind.TEXT)
    """Address host:port of the page, the metrics and the health of the application; `off`: none. When the default
    port is taken, one of the next 15."""
    status_page_token: str = setting("", Kind.TEXT, secret=True)
    """Token that the page and the metrics ask for, also `env:NAME` or `file:PATH`; an address that other machines
    reach needs one."""

    log_level: str = setting("auto", Kind.TEXT, choices=LEVELS)
    """Least level of the lines that gateways write to their executor's standard error. auto: warning in local mode,
    where that is the terminal of the driver's program, and info on a cluster."""
    log_format: str = setting("text", Kind.TEXT, choices=FORMATS)
    """Format of these lines: text, or json for one JSON object in each line, with application and gateway."""

    def __post_init__(self) -> None:
        check_all(self, "application: ")
        if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", self.known_as):
            raise ConfigurationError(
                f"application name {self.known_as!r}: use 1 to 100 letters, digits, dots, dashes and underscores, and "
                "no dot in front; give name",
                code="name-invalid",
                name=self.known_as,
            )
        check_listening(self, f"application {self.known_as!r}", self.advertise)

    @property
    def schema_files(self) -> tuple[str, ...]:
        """The files of ``schema``."""
        return (self.schema,) if isinstance(self.schema, str) else tuple(self.schema)

    @property
    def known_as(self) -> str:
        """The name of the application."""
        return self.name or self.folder.rstrip("/").rpartition("/")[2]
