"""Errors of calls: a gRPC status, a text, and the code in the trailing metadata ``wallaroo-code``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc

from wallaroo_spark.errors import CheckpointError, WallarooError, one_line, printable
from wallaroo_spark.gateway.limits import Refused, invalid
from wallaroo_spark.gateway.tokens import bearer

log = one_line("wallaroo_spark.gateway")

CODE = "wallaroo-code"
"""The key of the trailing metadata that has the code of an error."""
CANCELLED = "cancelled"
"""The outcome of a call that its client has ended."""
FAILED = "gateway-failed"
"""The code of an error of this program."""
_LONGEST_TEXT = 2000
"""The most bytes of an error's text as it is sent. Clients refuse metadata of more than 8 KiB."""


async def abort(context: Any, problem: Refused) -> NoReturn:
    """End a call with an error."""
    text = sendable(printable(problem.message[:_LONGEST_TEXT]))
    await context.abort(grpc.StatusCode[problem.status], text, ((CODE, problem.code),))
    raise AssertionError("a call goes on after its end")


def sendable(text: str) -> str:
    """As much of a text as has ``_LONGEST_TEXT`` bytes in gRPC's encoding, which takes three for each byte beyond
    printable ASCII."""
    left = _LONGEST_TEXT
    for place, one in enumerate(text):
        left -= 1 if " " <= one <= "~" and one != "%" else 3 * len(one.encode(errors="replace"))
        if left < 0:
            return text[:place]
    return text


def explained(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """A method of a service whose errors reach the client with status, text and code, and whose calls are counted."""
    name = method.__name__

    @functools.wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        figures = self._gateway.figures
        try:
            answer = await method(self, request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            figures.call(name, CANCELLED)
            raise
        except Exception as error:
            problem = _refusal(name, error)
            figures.call(name, problem.code)
            await abort(context, problem)
        figures.call(name)
        return answer

    return call


def _refusal(name: str, error: Exception) -> Refused:
    """The error that the client of a method gets; one of this program, or of its files, is logged."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, WallarooError):
        log.warning("%s failed: %s", name, error)
    if isinstance(error, CheckpointError):
        # The file system may answer the next call, or another gateway's.
        code = error.code or "checkpoint-unreadable"
        return Refused(f"{error.message}; try again", code=code, status="UNAVAILABLE")
    if isinstance(error, WallarooError):
        return Refused(error.message, code=error.code or FAILED, status="INTERNAL")
    log.error("%s failed by an error of this program", name, exc_info=error)
    text = "the gateway has failed at this call; its log has the error; report it"
    return Refused(text, code=FAILED, status="INTERNAL")


def token_of(context: Any) -> str:
    """The token of a call; empty without one."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            return bearer(value if isinstance(value, str) else value.decode("latin-1"))
    return ""


async def first_message(messages: AsyncIterator[Any]) -> Any:
    """The first message of a client. Raises :class:`Refused` when none comes."""
    try:
        return await anext(messages)
    except StopAsyncIteration:
        raise invalid("the client sent no message; the first one says what to join") from None
