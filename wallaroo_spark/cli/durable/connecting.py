"""The options by which a verb finds the gateways of an application, and events as lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from wallaroo_spark.errors import printable
from wallaroo_spark.json_text import json_line

if TYPE_CHECKING:
    from wallaroo_spark.client import Client, Event


@dataclass(frozen=True)
class GatewayOptions:
    """The gateways of an application.

    Options:
        --gateway ADDRESS: Gateways: host:port, separated by commas.
        --registry URL: Redis with the gateways' addresses, in place of them.
        --application NAME: Name of the application, with --registry.
        --token TOKEN: The token; env:NAME or file:PATH hide it.
        --tls: Use TLS, with the authorities that gRPC trusts.
        --tls-ca FILE: PEM file of the authority of the gateways.
        --tls-certificate FILE: PEM file of the certificate to present.
        --tls-key FILE: PEM file with the key of --tls-certificate.
    """

    gateway: str = ""
    registry: str = ""
    application: str = ""
    token: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    def settings(self) -> dict[str, Any]:
        """The settings of a client. Raises click.UsageError without an address."""
        found = {
            "token": self.token,
            "tls": self.tls,
            "ca": self.tls_ca,
            "certificate": self.tls_certificate,
            "key": self.tls_key,
        }
        if self.gateway:
            return {**found, "address": self.gateway}
        if self.registry and self.application:
            return {**found, "registry": self.registry, "application": self.application}
        raise click.UsageError(
            "give --gateway HOST:PORT, or --registry URL and --application NAME, or set WALLAROO_GATEWAY, or use "
            "--context"
        )

    def client(self) -> Client:
        """A client. Raises click.UsageError without an address."""
        from wallaroo_spark.client import Client

        return Client(**self.settings())


def start_of_text(text: str) -> str | int:
    """Where a group begins or goes on: an offset, or the name of a place, which the client checks."""
    return int(text) if text.isdecimal() else text


def event_as_json(event: Event, **more: Any) -> str:
    """An event in the JSON format of CloudEvents as one line, with further members."""
    from wallaroo_spark.client.events import to_structured

    return json_line({**more, **to_structured(event)})


def shown_data(event: Event) -> str:
    """The payload of an event as one line for a person."""
    value = event.value
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    try:
        return repr(value)[2:-1] if isinstance(value, bytes) else json_line(value)
    except ValueError:
        # Python has read more than JSON can say, such as 1e400.
        return repr(event.data)[2:-1]
