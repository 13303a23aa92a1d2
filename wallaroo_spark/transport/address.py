"""Parsing and formatting of addresses: ``host:7100``, ``[::1]:7100``, and comma-separated lists of these.

The address under which a slot is announced, made from an option's template, the slot's number and the port.
"""

from __future__ import annotations

import contextlib
import ipaddress
import string
from collections.abc import Sequence

from wallaroo_spark.errors import ConfigurationError

_EXAMPLE = "write host:port, for example worker-1:7100 or [::1]:7100"
_GREATEST_PORT = 65535


def parse_address(text: str, *, least: int = 1) -> tuple[str, int]:
    """Parse one address to (host, port). An IPv6 address is written in brackets, which are not part of the host.

    ``least`` is the least port that is accepted. Raises :class:`ConfigurationError` with the text, the mistake, and an
    example.
    """
    scheme, separator, _ = text.strip().partition("://")
    if separator:
        # Without the rest, in which there may be a password.
        remedy = "give the URL of a registry as registry" if "redis" in scheme else f"leave {scheme}:// out"
        raise _unreadable(f"{scheme}://…", "is a URL and not an address", f"{remedy}, or {_EXAMPLE}")
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        raise _unreadable(text, "has no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise _unreadable(text, "has brackets around a text that is not an IPv6 address")
    elif ":" in host:
        raise _unreadable(text, "has an IPv6 address without brackets, or two ports")
    if not host or any(character.isspace() or character in "[]/@" for character in host):
        raise _unreadable(text, "has no host name or address before the port")
    if not (port.isascii() and port.isdigit() and least <= int(port) <= _GREATEST_PORT):
        raise _unreadable(text, f"has port {port!r}, which is not a number from {least} to {_GREATEST_PORT}")
    return host, int(port)


def parse_addresses(given: str | Sequence[str]) -> list[tuple[str, int]]:
    """Parse a list of addresses, which may be a text with commas, in order. Empty entries are skipped.

    Raises :class:`ConfigurationError` for an entry that cannot be parsed, or when the list is empty.
    """
    text = given if isinstance(given, str) else ",".join(given)
    addresses = [parse_address(entry) for entry in text.split(",") if entry.strip()]
    if not addresses:
        raise _unreadable(text, "has no address")
    return addresses


def format_address(host: str, port: int) -> str:
    """Format an address as :func:`parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unreadable(text: str, problem: str, remedy: str = _EXAMPLE) -> ConfigurationError:
    return ConfigurationError(f"address {text!r} {problem}; {remedy}", code="address-invalid", address=text)


_FIELDS = ("slot", "port")


def advertised(template: str, slot: int, port: int) -> str:
    """The ``host:port`` of a slot whose listener has port ``port``, made from ``template``.

    A template is a host name or address, with or without a port; ``{slot}`` and ``{port}`` in it are replaced. Without
    a port it gets the listener's. Raises :class:`ConfigurationError` with the template's mistake.
    """
    try:
        unknown = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None} - {*_FIELDS}
        if unknown:
            raise ConfigurationError(
                f"{template!r} has {{{min(unknown)}}}, and only {{slot}} and {{port}} are replaced; write for example "
                "worker-{slot}.example.com:{port}",
                code="address-invalid",
                template=template,
            )
        text = template.format(slot=slot, port=port).strip()
    except ValueError as error:
        raise ConfigurationError(
            f"{template!r} cannot be parsed: {error}; write for example worker-{{slot}}.example.com:{{port}}",
            code="address-invalid",
            template=template,
        ) from None
    with contextlib.suppress(ValueError):
        return format_address(str(ipaddress.IPv6Address(text.strip("[]"))), port)
    return format_address(*parse_address(text if ":" in text else f"{text}:{port}"))
