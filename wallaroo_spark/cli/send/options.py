"""The options of ``send``, and those by which it and ``replay`` connect to workers."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated, Any

import click

from wallaroo_spark.cli.verbs import row_of
from wallaroo_spark.connector import Backoff
from wallaroo_spark.connector.settings import ConnectorSettings
from wallaroo_spark.connector.sources.files import TOO_LONG


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Cookie, TLS and attempts of a connector.

    Options:
        --cookie COOKIE:
        --tls: Use TLS, with the authorities that this system trusts.
        --tls-ca FILE:
        --tls-certificate FILE:
        --tls-key FILE:
        --give-up-after SECONDS:
    """

    cookie: Annotated[str, row_of(ConnectorSettings, "cookie")]
    tls: bool = False
    tls_ca: Annotated[str, row_of(ConnectorSettings, "ca")]
    tls_certificate: Annotated[str, row_of(ConnectorSettings, "certificate")]
    tls_key: Annotated[str, row_of(ConnectorSettings, "key")]
    give_up_after: Annotated[float, row_of(Backoff, "give_up_after")]

    def settings(self) -> dict[str, Any]:
        """The settings of a connector."""
        from wallaroo_spark.transport import client_context

        own = {"ca": self.tls_ca, "certificate": self.tls_certificate, "key": self.tls_key}
        tls = client_context() if self.tls and not any(own.values()) else None
        return {"cookie": self.cookie, "tls": tls, **own, "retry": Backoff(give_up_after=self.give_up_after)}


@dataclass(frozen=True, kw_only=True)
class SendOptions(ConnectionOptions):
    """The receiver, and how records become messages.

    Options:
        --workers HOST:PORT,…:
        --registry URL:
        --receiver NAME: The receiver's name; needed with --registry.
        --instance: Name under which the receiver knows this connector's streams; without it, this host's name. Keep
            it the same from run to run, and use it in one program at a time.
        --follow: Wait for more at the end of a file or topic, until interrupted; a file also across rotations.
        --stream NAME: Name of the stream of the one input; else the path as it is given.
        --long-lines: End with an error at a line that is longer than a frame (4 MiB), or leave it out, or cut it.
        --positions DIR: With --follow: folder of the small files that say where rotated files begin. [default:
            ~/.local/state/wallaroo-spark/positions]
        --framed: A record is a big-endian u32 length and that many bytes, and not a line.
        --topic-registry URL: Redis where topics are found; else --registry's.
        --topic-cookie COOKIE: The cookie of topics; env:NAME or file:PATH.
        --topic-tls-ca FILE: PEM file of the authority of topics' publishers.
        --topic-value: A message has a row as a JSON object, or some rows as an Arrow IPC stream.
    """

    workers: Annotated[str, row_of(ConnectorSettings, "workers")]
    registry: Annotated[str, row_of(ConnectorSettings, "registry")] = ""
    receiver: str = ""
    instance: str = ""
    version: Annotated[str, "--protocol-version", row_of(ConnectorSettings, "version")]
    revision: Annotated[str, row_of(ConnectorSettings, "revision")]
    follow: bool = False
    stream: str = ""
    long_lines: Annotated[str, click.Choice(TOO_LONG)] = "error"
    positions: str = ""
    framed: bool = False
    topic_registry: str = ""
    topic_cookie: str = ""
    topic_tls_ca: str = ""
    topic_value: Annotated[str, click.Choice(["json", "arrow"])] = "json"

    @property
    def name(self) -> str:
        """The name of the connector."""
        return self.instance or socket.gethostname()
