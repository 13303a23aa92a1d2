"""Refusals of HTTP and OTLP requests: a status of HTTP, a code of ``docs/errors.md`` and a sentence.

Source: RFC 9457; ``docs/errors.md#the-http-door``, ``docs/errors.md#the-otlp-door``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

MEDIA_TYPE = "application/problem+json"
STATUS = {
    "http-malformed": HTTPStatus.BAD_REQUEST,
    "http-body-unreadable": HTTPStatus.BAD_REQUEST,
    "http-field-unreadable": HTTPStatus.BAD_REQUEST,
    "http-unauthorized": HTTPStatus.UNAUTHORIZED,
    "http-origin": HTTPStatus.FORBIDDEN,
    "http-no-such-path": HTTPStatus.NOT_FOUND,
    "http-request-unknown": HTTPStatus.NOT_FOUND,
    "http-method": HTTPStatus.METHOD_NOT_ALLOWED,
    "http-too-slow": HTTPStatus.REQUEST_TIMEOUT,
    "http-token-order": HTTPStatus.CONFLICT,
    "http-token-given-up": HTTPStatus.CONFLICT,
    "http-body-too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "http-media-type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "http-head-too-large": HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "http-full": HTTPStatus.SERVICE_UNAVAILABLE,
    "http-not-ready": HTTPStatus.SERVICE_UNAVAILABLE,
    "http-elsewhere": HTTPStatus.SERVICE_UNAVAILABLE,
    "http-send-again": HTTPStatus.SERVICE_UNAVAILABLE,
    "otlp-body-unreadable": HTTPStatus.BAD_REQUEST,
    "otlp-unauthorized": HTTPStatus.UNAUTHORIZED,
    "otlp-body-too-large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "otlp-media-type": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "otlp-full": HTTPStatus.SERVICE_UNAVAILABLE,
    "otlp-not-ready": HTTPStatus.SERVICE_UNAVAILABLE,
    "otlp-send-again": HTTPStatus.SERVICE_UNAVAILABLE,
    "internal-error": HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The status of each code. A request that is answered with 503 may be sent again unchanged."""
RETRY_SECONDS = 1
"""Seconds in ``Retry-After``. A choice: about the length of a batch."""


class Problem(Exception):
    """A request is refused. ``detail`` is a sentence for a person, ``headers`` are further fields of the answer."""

    def __init__(self, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        # A request that another worker takes is sent on where its place is known.
        moved = code == "http-elsewhere" and "Location" in (headers or {})
        self.status = HTTPStatus.TEMPORARY_REDIRECT if moved else STATUS[code]
        retry = {"Retry-After": str(RETRY_SECONDS)} if self.status is HTTPStatus.SERVICE_UNAVAILABLE else {}
        self.headers = {**retry, **(headers or {})}

    def body(self) -> bytes:
        """The problem details as JSON."""
        told = {"title": self.status.phrase, "status": int(self.status), "code": self.code, "detail": self.detail}
        return json.dumps(told).encode()
