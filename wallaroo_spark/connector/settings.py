"""The settings of a connector, as a table."""

from __future__ import annotations

import dataclasses
import importlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from wallaroo_spark.connector.arguments import utf8_of
from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.errors import ArgumentValueError, ConfigurationError
from wallaroo_spark.extras import needed_by
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.protocol import MAX_INSTANCE_BYTES, REVISIONS, Revision
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.transport import client_context, parse_addresses, read_authority

QUIC = "quic://"
"""What stands in front of the addresses of workers that are spoken to over QUIC."""
_REGISTRIES = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")
_CONTEXT = "a SSLContext; give ssl.create_default_context() to trust this system's authorities, or the setting ca"
_BACKOFF = "a Backoff; write Backoff(attempts=3), for example"


@dataclass(frozen=True, kw_only=True)
class ConnectorSettings:
    """The settings of :class:`Connector` and :class:`BlockingConnector`.

    Raises :class:`ConfigurationError` for settings that cannot work.
    """

    program: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Name of the receiver, if registry is given; otherwise any name, unless the receiver's option programs lists
    the names that it accepts."""
    instance: str = field(metadata=row(Kind.TEXT))
    """Name under which the receiver knows this connector's streams. Keep it the same from run to run, and use it in
    one program at a time."""
    workers: str | Sequence[str] = setting("", Kind.NAMES)
    """Addresses of one or more workers, host:port, separated by commas or as a list. quic:// in front of the first:
    connect to all of them over QUIC, as with quic."""
    registry: str | None = setting(None, Kind.TEXT, secret=True)
    """Redis URL where the workers' addresses are looked up whenever a session is needed; also env:NAME or
    file:PATH. Give this or workers."""
    cookie: str = setting("", Kind.TEXT, secret=True)
    """The receiver's cookie; also env:NAME or file:PATH."""
    quic: bool = setting(False, Kind.FLAG)
    """Connect over QUIC in place of TCP, at the UDP port with the same number; the receiver's option quic lets workers
    listen there. Needs the extra quic, and always uses TLS."""
    datagrams: bool = setting(False, Kind.FLAG)
    """Over QUIC: send messages of ephemeral streams in datagrams, which may be lost and may overtake each other; one
    that does not fit into a datagram is sent reliably."""
    version: str = setting("0.0.1", Kind.TEXT)
    """Protocol version; the same as the receiver's option version."""
    revision: str = setting("draft-be", Kind.TEXT, choices=tuple(REVISIONS))
    """Revision of the protocol."""
    tls: ssl.SSLContext | None = setting(None, Kind.OBJECT, of=(ssl.SSLContext, _CONTEXT))
    """TLS context, in place of ca, certificate and key."""
    ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the workers' certificates; turns TLS on. Over QUIC, empty: the authorities that
    this system trusts."""
    certificate: str = setting("", Kind.TEXT)
    """PEM file of the certificate to present; turns TLS on."""
    key: str = setting("", Kind.TEXT)
    """PEM file with the key of the certificate."""
    max_unacknowledged: int = setting(64 << 20, Kind.BYTES, minimum=1)
    """Bytes of unacknowledged messages that are kept for resending; sending waits while there are more."""
    max_frame_bytes: int = setting(4 << 20, Kind.BYTES, minimum=1)
    """Longest frame that is sent or accepted, tag and body together."""
    connect_timeout: float = setting(10.0, Kind.SECONDS, minimum=0.001)
    """Longest time to connect to one address."""
    handshake_timeout: float = setting(60.0, Kind.SECONDS, minimum=0.001)
    """Longest wait for the answer to HELLO. A worker may not answer until its query has started."""
    retry: Backoff | None = setting(None, Kind.OBJECT, of=(Backoff, _BACKOFF))
    """Delays between attempts to get a session, and when to give up; None: Backoff()."""
    message_ids: str = setting("increasing", Kind.TEXT, choices=("increasing", "opaque"))
    """Whether message ids increase within a stream, or are only compared for equality. The receiver has the same
    setting; opaque ids need one of the drafts."""
    drain_timeout: float | None = setting(60.0, Kind.SECONDS, minimum=0)
    """Longest wait at the end of a with block until everything is acknowledged; None: no limit."""

    def __post_init__(self) -> None:
        check_all(self)
        if not self.program:
            raise ArgumentValueError(
                "program is empty; give the receiver's name", code="option-missing", option="program"
            )
        size = len(utf8_of(self.instance, "instance"))
        if not 0 < size <= MAX_INSTANCE_BYTES:
            raise ArgumentValueError(
                f"instance {self.instance!r} has {size} bytes; give a name of 1 to {MAX_INSTANCE_BYTES} bytes",
                code="name-invalid",
                option="instance",
            )
        if bool(self.workers) == bool(self.registry):
            problem = "both workers and registry are" if self.workers else "neither workers nor registry is"
            raise ConfigurationError(
                f"{problem} given; give the workers' addresses (host:port, comma-separated), or the registry's URL",
                code="option-missing",
            )
        if not self.increasing and self.protocol_revision.layout.known_flags is None:
            raise ConfigurationError(
                f"message_ids is opaque, and ids always increase in {self.revision}; use one of the drafts",
                code="options-conflict",
                option="messageIds",
            )

        if self.over_quic:
            self._check_quic()
        elif self.datagrams:
            raise ConfigurationError(
                "datagrams is given, and only QUIC has datagrams; write quic:// in front of the workers' addresses, or "
                "give quic=True",
                code="options-conflict",
                option="datagrams",
            )

    def _check_quic(self) -> None:
        """Refuse settings that cannot work over QUIC."""
        if self.tls is not None:
            raise ConfigurationError(
                "tls is a context for TCP, and the connector connects over QUIC; give ca, or nothing for the "
                "authorities that this system trusts",
                code="options-conflict",
                option="tls",
            )
        if self.certificate or self.key:
            raise ConfigurationError(
                "over QUIC a worker does not ask connectors for certificates; remove certificate and key and give a "
                "cookie, or connect over TCP",
                code="options-conflict",
                option="certificate",
            )
        if self.datagrams and self.protocol_revision.layout.known_flags is None:
            raise ConfigurationError(
                f"datagrams carry messages of ephemeral streams, and {self.revision} has none; use one of the drafts",
                code="options-conflict",
                option="datagrams",
            )

    @property
    def over_quic(self) -> bool:
        """Whether workers are reached over QUIC."""
        first = self.workers if isinstance(self.workers, str) else ",".join(self.workers)
        return self.quic or first.strip().startswith(QUIC)

    @property
    def protocol_revision(self) -> Revision:
        """The revision with the name ``revision``."""
        return REVISIONS[self.revision]

    @property
    def increasing(self) -> bool:
        """Whether message ids increase."""
        return self.message_ids == "increasing"

    @property
    def backoff(self) -> Backoff:
        """``retry``, or its default."""
        return self.retry or Backoff()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """``workers`` as hosts and ports; empty with a registry."""
        if not self.over_quic:
            return parse_addresses(self.workers) if self.workers else []
        listed = self.workers.split(",") if isinstance(self.workers, str) else self.workers
        return parse_addresses([entry.strip().removeprefix(QUIC) for entry in listed]) if self.workers else []

    def resolved(self) -> ConnectorSettings:
        """A copy with the cookie resolved from ``env:`` or ``file:``, and with a TLS context if TLS is on."""
        if self.registry and not resolve_secret(self.registry).startswith(_REGISTRIES):
            raise ArgumentValueError(
                "setting registry: it is not the URL of a registry; write redis://[[user]:password@]host:6379/0, or "
                "rediss:// for TLS",
                code="url-invalid",
                option="registry",
            )
        tls = self.tls
        if self.over_quic:
            with needed_by("a connector over QUIC", "quic"):
                importlib.import_module("aioquic")
            if self.ca:
                read_authority(self.ca)
        elif tls is None and (self.ca or self.certificate or self.key):
            tls = client_context(self.ca, self.certificate, self.key)
        return dataclasses.replace(self, cookie=resolve_secret(self.cookie), tls=tls)
