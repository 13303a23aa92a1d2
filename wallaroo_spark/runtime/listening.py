"""The settings of the address at which long jobs listen, and of its TLS: rows that topics and applications share."""

from __future__ import annotations

import ssl
from typing import Any, Protocol

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.settings import Kind
from wallaroo_spark.transport import advertised, server_context


def listen_rows(server: str, client: str) -> dict[str, dict[str, Any]]:
    """The rows of jobs that are called ``server`` (such as ``gateway``), to which a ``client`` connects.

    They are the arguments of :func:`wallaroo_spark.settings.setting`, by the names of :class:`ListenSettings`.
    """
    helps = {
        "host": f"Address that {server}s bind. Empty: loopback in local mode, every interface on a cluster.",
        "port": f"{server.capitalize()} p listens on port + p; 0 lets the system choose.",
        "advertise": (
            f"Host name or address for {client}s, also with a port; {{slot}} and {{port}} stand for p and its port. "
            f"Empty: detected by the {server}."
        ),
        "tls_certificate": (
            f"PEM file, on every executor, with the certificate chain that {server}s present; turns TLS on."
        ),
        "tls_key": "PEM file, on every executor, with the key of `tls_certificate`.",
        "tls_ca": (
            f"PEM file, on every executor, of the authority that {client}s' certificates must come from; every "
            f"{client} must present one."
        ),
    }
    rows: dict[str, dict[str, Any]] = {
        name: {"default": "", "kind": Kind.TEXT, "help": help} for name, help in helps.items()
    }
    rows["port"] |= {"default": 0, "kind": Kind.COUNT, "minimum": 0, "maximum": 65_535}
    return rows


class ListenSettings(Protocol):
    """Settings with the rows of :func:`listen_rows`."""

    @property
    def host(self) -> str:
        """The address to bind."""

    @property
    def port(self) -> int:
        """The port of job 0; job n listens at ``port + n``. 0: the system chooses."""

    @property
    def tls_certificate(self) -> str:
        """The certificate."""

    @property
    def tls_key(self) -> str:
        """Its key."""

    @property
    def tls_ca(self) -> str:
        """The authority of the clients."""


def tls_context(settings: ListenSettings) -> ssl.SSLContext | None:
    """The TLS context of a listener; None without TLS. Raises :class:`ConfigurationError` for files of no use."""
    if not settings.tls_certificate:
        return None
    return server_context(settings.tls_certificate, settings.tls_key, settings.tls_ca)


def check_listening(settings: ListenSettings, owner: str, *templates: str) -> None:
    """Raise :class:`ConfigurationError` for settings that do not go together.

    ``owner`` names their owner, such as ``topic 'prices'``; ``templates`` are the values of ``advertise``.
    """
    for template in templates:
        if template:
            advertised(template, 0, 1)
    if bool(settings.tls_key) != bool(settings.tls_certificate) or (settings.tls_ca and not settings.tls_certificate):
        raise ConfigurationError(
            f"{owner}: tls_certificate and tls_key go together, and tls_ca needs both", code="options-conflict"
        )
