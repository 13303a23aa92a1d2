"""Access to the page: the checks of a request's method, host and token. Without sockets.

A page on a loopback address is protected by the Host header: a site whose name is suddenly resolved to 127.0.0.1 (DNS
rebinding) sends its own name there. A page with a token is protected by the token: a program sends it as
``Authorization: Bearer …``, and a browser sends a cookie that is derived from it, which ``/login`` sets.
Source: ``docs/status-page.md#who-sees-it``.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus

from wallaroo_spark.web.server.place import is_loopback
from wallaroo_spark.web.server.requests import Request, host_name
from wallaroo_spark.web.server.responses import TEXT, Response
from wallaroo_spark.web.server.routes import Route, Routes

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
        if not self._token and not self._is_own(request.headers.get("host", "")):
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

    def _is_own(self, header: str) -> bool:
        name = host_name(header)
        return name == self._host or is_loopback(name)

    def _may_see(self, request: Request) -> bool:
        if not self._token:
            return True
        cookie = request.cookie(self._cookie_name)
        return self._has_token(request) or hmac.compare_digest(cookie.encode("latin-1"), self._cookie.encode())

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
