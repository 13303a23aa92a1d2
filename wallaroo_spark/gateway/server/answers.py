"""Errors of calls: a gRPC status, a text, and the code in the trailing metadata ``wallaroo-code``.

Messages of clients as they arrive: one that is too large or unreadable is refused with a code and a text.

Calls to the application's files, each in a thread of its own and with a limit in time.

A hung network mount answers no call. The threads are no part of the event loop's pool: one that never ends would hold
up the others, and the end of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError

from wallaroo_spark.errors import CheckpointError, WallarooError, one_line, printable
from wallaroo_spark.gateway.limits import Refused, invalid
from wallaroo_spark.gateway.tokens import bearer

log = one_line(logging.getLogger("wallaroo_spark.gateway"))

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
        except Refused as problem:
            figures.call(name, problem.code)
            await abort(context, problem)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            figures.call(name, CANCELLED)
            raise
        except CheckpointError as error:
            # The file system may answer the next call, or another gateway's.
            log.warning("%s failed: %s", method.__name__, error)
            code = error.code or "checkpoint-unreadable"
            await abort(context, Refused(f"{error.message}; try again", code=code, status="UNAVAILABLE"))
        except WallarooError as error:
            log.warning("%s failed: %s", name, error)
            figures.call(name, error.code or FAILED)
            await abort(context, Refused(error.message, code=error.code or FAILED, status="INTERNAL"))
        except Exception:
            log.exception("%s failed by an error of this program", name)
            figures.call(name, FAILED)
            text = "the gateway has failed at this call; its log has the error; report it"
            await abort(context, Refused(text, code=FAILED, status="INTERNAL"))
        figures.call(name)
        return answer

    return call


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


MARGIN = 2
"""How many times ``message_bytes`` gRPC itself accepts. A choice: a message between the two limits is refused with a
text that has the limit; gRPC refuses larger ones, before it has them in memory."""


class MessageReader(grpc.aio.ServerInterceptor):
    """Reads the messages of every method. The error of an unreadable one is raised where it is awaited, because the
    entrance makes every method one of a stream of messages."""

    def __init__(self, message_bytes: int) -> None:
        self._message_bytes = message_bytes

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Replace the deserializer of the method that is called."""
        handler = await continuation(details)
        if handler is None:
            return None
        parse = handler.request_deserializer

        def read(data: bytes) -> Any:
            return self._read(data, parse, details.method)

        return handler._replace(request_deserializer=read)

    def _read(self, data: bytes, parse: Callable[[bytes], Any], method: str) -> Any:
        if len(data) > self._message_bytes:
            raise invalid(
                f"the message has {len(data)} bytes, and {self._message_bytes} are permitted; divide it, or keep large "
                "data elsewhere and send its address"
            )
        try:
            return parse(data)
        except DecodeError as error:
            raise invalid(
                f"the message of {len(data)} bytes is not the one that {method} takes, or a text in it is not UTF-8; "
                "make the client from the application's pipelines.proto"
            ) from error


T = TypeVar("T")

MOST_READS = 32
"""The most calls at once, beside the one that writes the inbox. The event loop's own pool has as many."""


class FileCalls:
    """Makes calls that block, each for at most ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._room = asyncio.Semaphore(MOST_READS)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call once fewer than ``MOST_READS`` others run. It raises as :meth:`call`."""
        async with self._room:
            return await self.call(function, *arguments)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a call. Raises its error, and :class:`Refused` when it does not return in time."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def tell(outcome: Callable[[Any], None], value: Any) -> None:
            def told() -> None:
                if not done.done():
                    outcome(value)

            # The loop has ended when nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(told)

        def run() -> None:
            try:
                value = function(*arguments)
            except BaseException as error:
                tell(done.set_exception, error)
            else:
                tell(done.set_result, value)

        threading.Thread(target=run, name="wallaroo-gateway-files", daemon=True).start()
        await asyncio.wait([done], timeout=self._seconds)
        if not done.done():
            name = getattr(function, "__name__", "a call")
            raise Refused(
                f"the file system of the application's folder has not answered for {self._seconds:g} seconds "
                f"({name}); check that it is mounted and reachable from this machine",
                code="folder-silent",
            )
        return done.result()
