"""The address of the status page, as the option ``statusPage`` gives it, and when that address needs a token."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport.address import parse_address

OFF = "off"
"""The value of the option ``statusPage`` that starts no server."""
SHORTEST_TOKEN = 16
"""Minimum length of a token in characters. A choice: a random token of this length cannot be guessed over a network."""


@dataclass(frozen=True)
class PageAddress:
    """The address at which the status page listens, and the token that a browser must present there."""

    host: str
    """The host name or address, without brackets."""
    port: int
    """The first port that is tried; 0 lets the system choose."""
    token: str
    """The token that a request must present; empty: none, which only a loopback address allows."""

    @classmethod
    def parse(cls, text: str, token: str) -> Self | None:
        """Read the options ``statusPage`` and ``statusPageToken``; None when there is no page.

        Raises :class:`ConfigurationError` for an address that cannot be read, and for an address that other machines
        reach without a token, or with a short one.
        """
        if text.strip().lower() == OFF:
            return None
        try:
            host, port = parse_address(text, least=0)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"option statusPage: {error.message}; or off for no page", code=error.code, option="statusPage"
            ) from None
        if token and len(token) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"option statusPageToken has {len(token)} characters, and needs {SHORTEST_TOKEN} or more, so that "
                "nobody guesses it",
                code="option-out-of-range",
                option="statusPageToken",
            )
        if not token and not is_loopback(host):
            raise ConfigurationError(
                f"option statusPage: other machines reach {host}, so the page needs a token; set statusPageToken to "
                f"{SHORTEST_TOKEN} characters or more, or use 127.0.0.1 in place of {host}",
                code="option-missing",
                option="statusPageToken",
            )
        return cls(host, port, token)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach the host. A name other than ``localhost`` counts as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
