"""HTTP requests, responses and the table of routes, as values.

A request is read strictly, and a response has the headers that keep a browser from trusting other content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

LONGEST_HEAD = 16 << 10
"""The most bytes of a request's head. A choice: browsers send about 1 KB, and cookies of other programs come on top."""
MOST_FIELDS = 20
"""The most fields of a query string. A choice: the page sends fewer than ten."""
HEAD_END = b"\r\n\r\n"

_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*|\*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*")


@dataclass(eq=False)
class BadRequestError(Exception):
    """The bytes are not a request that this server answers."""

    status: int
    reason: str


@dataclass(frozen=True)
class Request:
    """The head of one HTTP request. Requests have no body, because the server only shows."""

    method: str
    """The method in upper case, such as ``GET``."""
    path: str
    """The path without the query, still percent-encoded: no path of this server needs an encoding."""
    query: Mapping[str, str]
    """The decoded fields of the query; of a repeated field the last one."""
    headers: Mapping[str, str]
    """The headers by name in lower case; repeated ones are joined by a comma, except for a repeated ``host``."""

    def cookie(self, name: str) -> str:
        """The value of a cookie; empty when the request has none of that name."""
        for pair in self.headers.get("cookie", "").split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
        return ""


def parse(head: bytes) -> Request:
    """Read a head, which ends with an empty line. Raises :class:`BadRequestError`."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise BadRequestError(400, "the request line is not one of HTTP/1.0 or HTTP/1.1")
    headers: dict[str, str] = {}
    for text in lines:
        header = _HEADER.fullmatch(text)
        if header is None:
            raise BadRequestError(400, "a header cannot be read")
        name, value = header[1].lower(), header[2]
        if name == "host" and name in headers:
            raise BadRequestError(400, "the request has two Host headers")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
        raise BadRequestError(413, "this server takes no request bodies")
    path, _, query = line[2].partition("?")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise BadRequestError(400, f"the query has more than {MOST_FIELDS} fields") from None
    return Request(line[1], path, dict(fields), headers)


def host_name(header: str) -> str:
    """The host name in a ``Host`` header, in lower case, without port and brackets; empty when it cannot be read."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
CSS = "text/css; charset=utf-8"
JAVASCRIPT = "text/javascript; charset=utf-8"
JSON = "application/json; charset=utf-8"
SVG = "image/svg+xml"

SAFE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response. Scripts and styles come from this server alone, and no other site may frame or read it."""


@dataclass(frozen=True)
class Response:
    """One HTTP response."""

    type: str
    """The media type of the body."""
    body: bytes
    """The body, already encoded."""
    status: int = HTTPStatus.OK
    """The HTTP status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers; the server adds those that every response has."""

    @classmethod
    def text(cls, text: str, status: int = HTTPStatus.OK, **headers: str) -> Response:
        """A response of one line of plain text."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(TEXT, f"{text}\n".encode(errors="replace"), status, named)

    @classmethod
    def json(cls, value: Any, status: int = HTTPStatus.OK) -> Response:
        """A response of a JSON-ready value. A number that JSON does not have (NaN) raises ValueError."""
        return cls(JSON, json.dumps(value, allow_nan=False, separators=(",", ":")).encode(), status)


def encode(response: Response, *, body: bool = True) -> bytes:
    """The bytes of a response; ``body=False`` leaves the body out, as the method HEAD asks."""
    status = HTTPStatus(response.status)
    headers = {
        "Content-Type": response.type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        **SAFE_HEADERS,
        **response.headers,
    }
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1") + (response.body if body else b"")


@dataclass(frozen=True)
class Route:
    """The response of one path."""

    answer: Callable[[Request], Response] | Response
    """The function that makes the response, called in a thread of the server; or a response that never changes."""
    open: bool = False
    """Whether the response needs no token, because it shows nothing of the receiver. A wrong host is refused anyway."""


Routes = Mapping[str, Route]
"""Paths, each with its route: ``{"/healthz": Route(health, open=True)}``."""
