"""Who may send: the bearer token, the origins of web pages, and the Host of a door without a secret. Pure."""

from __future__ import annotations

from collections.abc import Collection

from wallaroo_spark.doors.http.parser import RequestHead
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.senders import Senders
from wallaroo_spark.transport.reach import is_loopback

_METHODS = "GET, POST, OPTIONS"
_FIELDS = (
    "Authorization, Content-Type, Content-Encoding, Prefer, Idempotency-Key, Wallaroo-Instance, Wallaroo-Token, "
    "Wallaroo-Key, ce-id, ce-source, ce-type, ce-specversion, ce-time, ce-subject, ce-dataschema, ce-partitionkey"
)
_PREFLIGHT_SECONDS = 600


class HttpAccess:
    """The checks of a request's head."""

    def __init__(self, senders: Senders, origins: Collection[str]) -> None:
        self._senders = senders
        self._origins = frozenset(origins)

    def check_origin(self, head: RequestHead) -> dict[str, str]:
        """The fields of the answer for a web page's browser. Raises :class:`Problem` for a page that may not send.

        Without a secret the Host must be a loopback address, because a site may have its own name resolved to one.
        """
        if self._senders.open and not is_loopback(_host(head.get("host"))):
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

    def check_secret(self, head: RequestHead) -> str:
        """The name of who sends; empty where it has none. Raises :class:`Problem` unless the request has a secret."""
        if self._senders.open:
            return ""
        scheme, _, given = head.get("authorization").partition(" ")
        # A field has bytes, which were read as Latin-1.
        name = self._senders.who(given.strip().encode("latin-1", "replace")) if scheme.lower() == "bearer" else None
        if name is None:
            raise Problem(
                "http-unauthorized",
                f"the request needs Authorization: Bearer with {self._senders.secret}",
                {"WWW-Authenticate": 'Bearer realm="wallaroo"'},
            )
        return name


def _host(field: str) -> str:
    """The host of a Host field, without port and brackets."""
    if field.startswith("["):
        return field[1:].partition("]")[0]
    return field.partition(":")[0]
