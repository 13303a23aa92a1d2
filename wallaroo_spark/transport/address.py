"""Parsing and formatting of addresses: ``host:7100``, ``[::1]:7100``, and comma-separated lists of these."""

from __future__ import annotations

from wallaroo_spark.errors import ConfigurationError

_EXAMPLE = "write host:port, for example worker-1:7100 or [::1]:7100"
_GREATEST_PORT = 65535


def parse_address(text: str, *, least: int = 1) -> tuple[str, int]:
    """Parse one address to (host, port). An IPv6 address is written in brackets, which are not part of the host.

    ``least`` is the least port that is accepted. Raises :class:`ConfigurationError` with the text, the mistake, and an
    example.
    """
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


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Parse a comma-separated list of addresses, in order. Empty entries are skipped.

    Raises :class:`ConfigurationError` for an entry that cannot be parsed, or when the list is empty.
    """
    addresses = [parse_address(entry) for entry in text.split(",") if entry.strip()]
    if not addresses:
        raise _unreadable(text, "has no address")
    return addresses


def format_address(host: str, port: int) -> str:
    """Format an address as :func:`parse_address` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unreadable(text: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"address {text!r} {problem}; {_EXAMPLE}", code="address-invalid", address=text)
