"""Access to the page: its address and token, and the checks of a request's method, host and token. Without sockets.

A page on a loopback address is protected by the Host header: a site whose name is suddenly resolved to 127.0.0.1 (DNS
rebinding) sends its own name there. A page with a token is protected by the token: a program sends it as
``Authorization: Bearer …``, and a browser sends a cookie that is derived from it, which ``/login`` sets.
Source: ``docs/status-page.md#who-sees-it``.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from http import HTTPStatus
from typing import Self

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.observe.server.messages import TEXT, Request, Response, Route, Routes, host_name
from wallaroo_spark.transport.address import parse_address
from wallaroo_spark.transport.reach import is_loopback

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


LOGIN = "/login"
METHODS = ("GET", "HEAD")


class Access:
    """Decides about the requests of one server."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._host = host.lower()
        self._token = token
        self._cookie_name = f"wallaroo_page_{port}"
        # A browser sends cookies to every port of a host, so the cookie is not the token itself.
        self._cookie = hmac.digest(token.encode(), b"wallaroo_spark status page", hashlib.sha256).hex()

    def decide(self, request: Request, routes: Routes) -> Route | Response:
        """Return the route that answers the request, or the response that refuses it."""
        if request.method not in METHODS:
            return Response.text(
                "this server only shows; use GET or HEAD", HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD"
            )
        name = host_name(request.headers.get("host", ""))
        if not self._token and name != self._host and not is_loopback(name):
            return Response.text(
                "this page answers to localhost and its own address alone; open it as localhost, or set the option "
                "statusPageToken",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        if request.path == LOGIN:
            return self._login(request)
        route = routes.get(request.path)
        if route is None:
            return Response.text("there is no such page; / is the status page", HTTPStatus.NOT_FOUND)
        if route.open or self._may_see(request):
            return route
        return _token_needed()

    def _may_see(self, request: Request) -> bool:
        cookie = request.cookie(self._cookie_name).encode("latin-1")
        return not self._token or self._has_token(request) or hmac.compare_digest(cookie, self._cookie.encode())

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # compare_digest takes the same time for every difference, so the time reveals nothing of the token.
        same = hmac.compare_digest(given.strip().encode("latin-1"), self._token.encode())
        return same and scheme.lower() == "bearer"

    def _login(self, request: Request) -> Response:
        if self._token and not self._has_token(request):
            return _token_needed()
        cookie = f"{self._cookie_name}={self._cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age=2592000"
        return Response(TEXT, b"", HTTPStatus.OK, {"Set-Cookie": cookie} if self._token else {})


def _token_needed() -> Response:
    return Response.text(
        "this page needs the token of the option statusPageToken: send it as Authorization: Bearer TOKEN",
        HTTPStatus.UNAUTHORIZED,
        WWW_Authenticate="Bearer",
    )
