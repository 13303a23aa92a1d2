"""The form of errors in OTLP: a ``google.rpc.Status``, as protobuf and as JSON. Pure.

Source: OTLP specification, "Failures" of both transports; google/rpc/status.proto, error_details.proto.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from wallaroo_spark.doors.http.problems import RETRY_SECONDS, STATUS, Problem

CODES = {
    HTTPStatus.UNAUTHORIZED: 16,
    HTTPStatus.FORBIDDEN: 7,
    HTTPStatus.SERVICE_UNAVAILABLE: 14,
    HTTPStatus.INTERNAL_SERVER_ERROR: 13,
}
"""The code of gRPC for a status of HTTP; any other refusal is INVALID_ARGUMENT, 3."""
_RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


def of_otlp(problem: Problem) -> Problem:
    """A refusal of what HTTP requests and OTLP requests share, as that of an OTLP request."""
    code = problem.code.replace("http-", "otlp-")
    return Problem(code, problem.detail, problem.headers) if code in STATUS else problem


def text_of(problem: Problem) -> str:
    """What the client is told: the reason, and the code that leads to its explanation."""
    return f"{problem.detail} [{problem.code}]"


def code_of(problem: Problem) -> int:
    """The code of gRPC for a refusal."""
    return CODES.get(problem.status, 3)


def packed(problem: Problem) -> bytes:
    """The status as protobuf; one that may be tried again has a RetryInfo among its details."""
    data = bytes([0x08, code_of(problem)]) + _field(2, text_of(problem).encode())
    if problem.status is HTTPStatus.SERVICE_UNAVAILABLE:
        delay = bytes([0x08, RETRY_SECONDS])
        data += _field(3, _field(1, _RETRY_INFO) + _field(2, _field(1, delay)))
    return data


def as_json(problem: Problem) -> bytes:
    """The status as JSON."""
    return json.dumps({"code": code_of(problem), "message": text_of(problem)}).encode()


def _field(number: int, value: bytes) -> bytes:
    length, size = b"", len(value)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value
