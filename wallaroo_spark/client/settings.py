"""The settings of a client, as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from wallaroo_spark.connector.arguments import utf8_of
from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, check_all, row, setting
from wallaroo_spark.transport.address import format_address, parse_addresses


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The settings of :class:`Client` and :class:`AsyncClient`.

    Raises :class:`ConfigurationError` for settings that cannot work.
    """

    address: str | Sequence[str] = field(default="", kw_only=False, metadata=row(Kind.NAMES))
    """Addresses of one or more gateways, host:port, separated by commas or as a list; any will do."""
    registry: str | None = setting(None, Kind.TEXT, secret=True)
    """Redis URL where the gateways' addresses are looked up; also env:NAME or file:PATH. Give this with
    application, or address."""
    application: str = setting("", Kind.TEXT)
    """Name of the application, with registry."""
    token: str = setting("", Kind.TEXT, secret=True)
    """Token of each request; also env:NAME or file:PATH."""
    source: str = setting("urn:wallaroo-spark:client", Kind.TEXT)
    """The source of events that have none. Events are known by source and id, so programs that give ids of their
    own have sources of their own."""
    tls: bool = setting(False, Kind.FLAG)
    """Use TLS, with the authorities that gRPC trusts."""
    ca: str = setting("", Kind.TEXT)
    """PEM file of the authority of the gateways' certificates; turns TLS on."""
    certificate: str = setting("", Kind.TEXT)
    """PEM file of the certificate to present; turns TLS on."""
    key: str = setting("", Kind.TEXT)
    """PEM file with the key of the certificate."""
    connect_timeout: float = setting(10.0, Kind.SECONDS, minimum=0.001)
    """Longest time to connect to one gateway."""
    timeout: float = setting(60.0, Kind.SECONDS, minimum=0.001)
    """Longest wait for the answer to a request, with all attempts. An answer waits for the commit of a batch."""
    finish_timeout: float = setting(30.0, Kind.SECONDS, minimum=0)
    """Longest wait at the end for functions of stages that still run."""
    retry: Backoff | None = setting(None, Kind.OBJECT, of=(Backoff, "a Backoff; write Backoff(initial=1), for example"))
    """Delays between attempts; None: Backoff()."""

    def __post_init__(self) -> None:
        check_all(self)
        if bool(self.address) == bool(self.registry):
            problem = "both address and registry are" if self.address else "neither address nor registry is"
            raise ConfigurationError(
                f"{problem} given; give a gateway's address (host:port, comma-separated), or the registry's URL and "
                "the application's name",
                code="option-missing",
            )
        if bool(self.registry) != bool(self.application):
            raise ConfigurationError(
                "registry and application belong together; give the registry's URL and the application's name",
                code="option-missing",
                option="application",
            )
        if not self.source:
            raise ConfigurationError(
                "source is empty, and every event has one; give a URI such as /shop/web", code="option-missing"
            )
        utf8_of(self.source, "source")
        if self.key and not self.certificate:
            raise ConfigurationError(
                f"TLS key {self.key} has no certificate; give the certificate's file too", code="tls-files"
            )
        _ = self.addresses

    @property
    def addresses(self) -> list[str]:
        """``address`` as a list; empty with a registry."""
        return [format_address(*one) for one in parse_addresses(self.address)] if self.address else []

    @property
    def backoff(self) -> Backoff:
        """``retry``, or its default."""
        return self.retry or Backoff()

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.tls or bool(self.ca or self.certificate)

    def resolved(self) -> ClientSettings:
        """A copy with the secrets resolved from ``env:`` or ``file:``.

        Raises :class:`ConfigurationError`, also for a token that no request can have with it.
        """
        registry = None if self.registry is None else resolve_secret(self.registry)
        token = resolve_secret(self.token)
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError(
                "the token has a character that is not printable ASCII; give the text that wallaroo-spark token create "
                "has printed",
                code="invalid-text",
                option="token",
            )
        return dataclasses.replace(self, token=token, registry=registry)
