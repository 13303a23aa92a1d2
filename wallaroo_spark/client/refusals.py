"""Errors of this package from the status of a request. Pure."""

from __future__ import annotations

from typing import Any

import grpc

from wallaroo_spark.errors import ConfigurationError, PipelineError, TransportError, WallarooError

CODE = "wallaroo-code"
"""The trailing metadata with the code of an error."""
AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""The statuses after which the same request may succeed, with another gateway too."""
INTERRUPTED = "Internal error from Core"
"""The text of gRPC's status INTERNAL for a message that was written while its call ended; the reason is lost."""
_SIGNS_OF_SIZE = ("message larger than max", "metadata size exceeds")
_ARGUMENTS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)


def may_try_again(error: grpc.aio.AioRpcError) -> bool:
    """Whether the request may succeed with this gateway or another one."""
    interrupted = error.code() is grpc.StatusCode.INTERNAL and error.details() == INTERRUPTED
    return interrupted or (error.code() in AGAIN and not _too_large(error))


def refusal(error: grpc.aio.AioRpcError, action: str) -> WallarooError:
    """The error of this package for a request that a gateway has refused; ``action`` names the request."""
    code = code_of(error)
    text = f"{action}: {error.details() or 'no reason was given'}"
    status = error.code()
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TransportError(
            f"{action}: there was no answer in time, and it may have been done; do it again with the same events, "
            "which are written once, or raise timeout",
            code="request-late",
        )
    if status is grpc.StatusCode.CANCELLED:
        return TransportError(f"{action}: the connection was closed meanwhile; try again", code="gateway-unreachable")
    if _too_large(error):
        return PipelineError(f"{text}; divide the request, or keep large data elsewhere", code="gateway-refused")
    if may_try_again(error):
        return TransportError(text, code=code or "gateway-unreachable")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return PipelineError(
            f"{action}: the gateway is of another version and does not know this request; use the version of the "
            "application",
            code="gateway-refused",
        )
    kind = ConfigurationError if status in _ARGUMENTS else PipelineError
    return kind(text, code=code or "gateway-refused", status=status.name)


def code_of(error: grpc.aio.AioRpcError) -> str:
    """The code that a gateway has sent; empty without one."""
    metadata: Any = error.trailing_metadata() or ()
    return next((str(value) for name, value in metadata if name == CODE), "")


def _too_large(error: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC itself has refused a message, or metadata, for its size; it gives no other sign than its text."""
    exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not code_of(error)
    return exhausted and any(sign in (error.details() or "") for sign in _SIGNS_OF_SIZE)
