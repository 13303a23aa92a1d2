"""HTTP responses: status, type, body, and the headers that keep a browser from trusting other content."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

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
        return cls(TEXT, f"{text}\n".encode(), status, named)

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
