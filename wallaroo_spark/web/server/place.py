"""The address of the status page, as the option ``statusPage`` gives it, and when that address needs a token."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Self

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.transport.address import parse_address

OPTIONS = ("statusPage", "statusPageToken")
"""The options of a receiver for the address and the token."""
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
    option: str = OPTIONS[0]
    """The name of the option that gives the address, for errors."""

    @classmethod
    def parse(cls, text: str, token: str, options: tuple[str, str] = OPTIONS) -> Self | None:
        """Read the address and the token, which are the values of ``options``; None when there is no page.

        Raises :class:`ConfigurationError` for an address that cannot be read, and for an address that other machines
        reach without a token, or with a short one.
        """
        option, of_token = options
        if text.strip().lower() == OFF:
            return None
        try:
            host, port = parse_address(text, least=0)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"option {option}: {error.message}; or off for no page", code=error.code, option=option
            ) from None
        if token and len(token) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"option {of_token} has {len(token)} characters, and needs {SHORTEST_TOKEN} or more, so that "
                "nobody guesses it",
                code="option-out-of-range",
                option=of_token,
            )
        if not token and not is_loopback(host):
            raise ConfigurationError(
                f"option {option}: other machines reach {host}, so the page needs a token; set {of_token} to "
                f"{SHORTEST_TOKEN} characters or more, or use 127.0.0.1 in place of {host}",
                code="option-missing",
                option=of_token,
            )
        return cls(host, port, token, option)


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach the host. A name other than ``localhost`` counts as reachable."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
