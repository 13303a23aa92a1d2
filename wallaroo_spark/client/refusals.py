"""Errors of this package from the status of a request. Pure.

Whose cancellation a ``CancelledError`` is.

The answers of requests as values, and the limit of their messages. Pure.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from wallaroo_spark.api.limits import MESSAGE_BYTES
from wallaroo_spark.errors import ArgumentValueError, ConfigurationError, PipelineError, TransportError, WallarooError

CODE = "wallaroo-code"
"""The trailing metadata with the code of an error."""
AGAIN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    # Of a gateway that ends, which cancels the calls that it has. A cancellation of the program is no status.
    grpc.StatusCode.CANCELLED,
)
"""The statuses after which the same request may succeed, with another gateway too."""
INTERRUPTED = "Internal error from Core"
"""The text of gRPC's status INTERNAL for a message that was written while its call ended; the reason is lost."""
WRITTEN_ONCE = "it may have been done; do it again with the same events, which are written once"
"""What to do when no answer comes in time, for events of streams."""
DONE_ONCE = "it may have been done; do it again, which changes nothing more"
"""The same for a request that may be repeated."""
MAYBE_DELIVERED = "receivers may have got the message; send it again if they may get it twice"
"""The same for a message of an exchange."""
MAYBE_ANSWERED = "the consumer may have done the work; call again if that may be done twice"
"""The same for a call of an endpoint."""
_SIGNS_OF_SIZE = ("message larger than max", "metadata size exceeds")
_ARGUMENTS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT)


def may_try_again(error: grpc.aio.AioRpcError) -> bool:
    """Whether the request may succeed with this gateway or another one."""
    interrupted = error.code() is grpc.StatusCode.INTERNAL and error.details() == INTERRUPTED
    return interrupted or (error.code() in AGAIN and not _too_large(error))


def refused_by_a_living_gateway(error: grpc.aio.AioRpcError) -> bool:
    """Whether a gateway has answered this, so that the connection to it is good: it may be busy, or about to end."""
    return bool(code_of(error)) or error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def refusal(error: grpc.aio.AioRpcError, action: str, late: str = DONE_ONCE) -> WallarooError:
    """The error of this package for a request that a gateway has refused; ``action`` names the request.

    ``late`` says what to do when no answer has come in time.
    """
    code = code_of(error)
    text = f"{action}: {error.details() or 'no reason was given'}"
    status = error.code()
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TransportError(
            f"{action}: there was no answer in time, and {late}; or raise timeout", code="request-late"
        )
    if status is grpc.StatusCode.CANCELLED:
        remedy = "try again" if late in (DONE_ONCE, WRITTEN_ONCE) else late
        return TransportError(f"{action}: the connection was closed meanwhile; {remedy}", code="gateway-unreachable")
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


def lost(error: grpc.aio.AioRpcError, action: str, late: str = DONE_ONCE) -> WallarooError:
    """The error of a connection that another one may replace. Raises that of a request that is refused for good."""
    if not may_try_again(error):
        raise refusal(error, action, late) from error
    return refusal(error, action, late)


def code_of(error: grpc.aio.AioRpcError) -> str:
    """The code that a gateway has sent; empty without one."""
    metadata: Any = error.trailing_metadata() or ()
    return next((str(value) for name, value in metadata if name == CODE), "")


def _too_large(error: grpc.aio.AioRpcError) -> bool:
    """Whether gRPC itself has refused a message, or metadata, for its size; it gives no other sign than its text."""
    exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not code_of(error)
    return exhausted and any(sign in (error.details() or "") for sign in _SIGNS_OF_SIZE)


def is_cancelled_itself() -> bool:
    """Whether the running task is being cancelled, and not only something that it awaits.

    gRPC cancels the calls of a connection that is closed, and a program may cancel a task that its own function awaits.
    Either raises CancelledError in a task that nobody has cancelled, where a task group would drop it without a word.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


T = TypeVar("T", bound=Message)


@dataclass(frozen=True)
class ApplicationDescription:
    """The declared objects of an application, and its gateways."""

    version: int
    """Version of the schema."""
    schema: str
    """The schema as YAML documents, without tokens."""
    gateways: tuple[str, ...]
    """The addresses of the gateways, ``host:port``."""


def within_limit(message: T, action: str) -> T:
    """The message itself. Raises :class:`ArgumentValueError` for one that no gateway takes."""
    size = message.ByteSize()
    if size > MESSAGE_BYTES:
        raise ArgumentValueError(
            f"{action}: the request has {size} bytes, and {MESSAGE_BYTES} are permitted; divide it, or keep large data "
            "elsewhere and send its address",
            code="message-too-large",
        )
    return message
