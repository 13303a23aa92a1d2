"""Who may send: the bearer token, the origins of web pages, and the Host of a door without a secret. Pure."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from wallaroo_spark.doors.http.parser import RequestHead
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.transport.reach import is_loopback

_METHODS = "GET, POST, OPTIONS"
_FIELDS = (
    "Authorization, Content-Type, Content-Encoding, Prefer, Idempotency-Key, Wallaroo-Instance, Wallaroo-Token, "
    "Wallaroo-Key, ce-id, ce-source, ce-type, ce-specversion, ce-time, ce-subject, ce-dataschema, ce-partitionkey"
)
_PREFLIGHT_SECONDS = 600


class HttpAccess:
    """The checks of a request's head. ``secret`` is the receiver's cookie; empty: none is asked for."""

    def __init__(self, secret: str, origins: Collection[str]) -> None:
        self._secret = secret.encode()
        self._origins = frozenset(origins)

    def check_origin(self, head: RequestHead) -> dict[str, str]:
        """The fields of the answer for a web page's browser. Raises :class:`Problem` for a page that may not send.

        Without a secret the Host must be a loopback address, because a site may have its own name resolved to one.
        """
        if not self._secret and not is_loopback(_host(head.get("host"))):
            raise Problem("http-origin", "a door without a cookie is reached as localhost, 127.0.0.1 or [::1] alone")
        origin = head.get("origin")
        if not origin:
            return {}
        if "*" not in self._origins and origin not in self._origins:
            raise Problem(
                "http-origin", f"pages of {origin[:128]!r} may not send here; http.origins lists those that do"
            )
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": "Location, Retry-After",
            "Vary": "Origin",
        }

    def preflight(self) -> dict[str, str]:
        """The fields of the answer to a browser that asks what it may send."""
        return {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _FIELDS,
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }

    def check_secret(self, head: RequestHead) -> None:
        """Raises :class:`Problem` unless the request has the token, compared in a time that tells nothing."""
        if not self._secret:
            return
        scheme, _, given = head.get("authorization").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._secret):
            raise Problem(
                "http-unauthorized",
                "the request needs Authorization: Bearer with the receiver's cookie",
                {"WWW-Authenticate": 'Bearer realm="wallaroo"'},
            )


def _host(field: str) -> str:
    """The host of a Host field, without port and brackets."""
    if field.startswith("["):
        return field[1:].partition("]")[0]
    return field.partition(":")[0]
