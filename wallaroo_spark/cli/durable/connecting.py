"""The options by which a verb finds the gateways of an application, and events as lines of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wallaroo_spark.errors import printable

if TYPE_CHECKING:
    from wallaroo_spark.client import Event

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--gateway", default="", metavar="ADDRESS", help="Gateways: host:port, separated by commas."),
    click.option("--registry", default="", metavar="URL", help="Redis with the gateways' addresses, in place of them."),
    click.option("--application", default="", metavar="NAME", help="Name of the application, with --registry."),
    click.option("--token", default="", metavar="TOKEN", help="The token; env:NAME or file:PATH hide it."),
    click.option("--tls", is_flag=True, help="Use TLS, with the authorities that gRPC trusts."),
    click.option("--tls-ca", default="", metavar="FILE", help="PEM file of the authority of the gateways."),
    click.option("--tls-certificate", default="", metavar="FILE", help="PEM file of the certificate to present."),
    click.option("--tls-key", default="", metavar="FILE", help="PEM file with the key of --tls-certificate."),
)


def gateway_options(command: F) -> F:
    """Add the options that :func:`client_settings` reads."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def client_settings(given: dict[str, Any]) -> dict[str, Any]:
    """Take the options of :func:`gateway_options` out of a verb's options, as settings of a client.

    Raises click.UsageError without an address.
    """
    address, registry = given.pop("gateway"), given.pop("registry")
    application = given.pop("application")
    found = {"token": given.pop("token"), "tls": given.pop("tls")}
    found |= {name: given.pop(f"tls_{name}") for name in ("ca", "certificate", "key")}
    if address:
        return {**found, "address": address}
    if registry and application:
        return {**found, "registry": registry, "application": application}
    raise click.UsageError(
        "give --gateway HOST:PORT, or --registry URL and --application NAME, or set WALLAROO_GATEWAY, or use --context"
    )


def start_of_text(text: str) -> str | int:
    """Where a group begins or goes on: an offset, or the name of a place, which the client checks."""
    return int(text) if text.isdecimal() else text


def event_as_json(event: Event, **more: Any) -> str:
    """An event in the JSON format of CloudEvents as one line, with further members."""
    from wallaroo_spark.client.events import to_structured
    from wallaroo_spark.json_text import json_line

    return json_line({**more, **to_structured(event)})


def shown_data(event: Event) -> str:
    """The payload of an event as one line for a person."""
    from wallaroo_spark.json_text import json_line

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
