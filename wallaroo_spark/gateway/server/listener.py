"""The gRPC listener of a gateway: address, TLS, limits and keepalive, and what it does with each call.

Every call is checked and counted before anything is read of it, and its first message has to come in time. A message
that is too large or unreadable is refused with a code and a text.

Source: ``docs/pipelines/gateway.md#limits``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.errors import TransportError
from wallaroo_spark.gateway.limits import GatewayLimits, Refused, busy, invalid
from wallaroo_spark.gateway.server.answers import abort, token_of
from wallaroo_spark.gateway.server.credentials import NO_TLS, TlsFiles
from wallaroo_spark.gateway.server.ephemeral import EndpointsService, ExchangesService
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.services import PipelinesService, SchemaService, StreamsService
from wallaroo_spark.transport import format_address

Method = Callable[[Any, Any], Awaitable[Any]]


class FirstMessages:
    """Waits for the first message of each call, for a limited time and for a limited number of calls."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._waiting: dict[object, asyncio.Timeout] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def of(self, messages: AsyncIterator[Any]) -> Any:
        """The first message. Raises :class:`Refused` when it does not come in time, and StopAsyncIteration without one.

        When too many calls wait, the one that has waited longest ends: honest clients send their message at once.
        """
        limits, call = self._limits, object()
        if len(self._waiting) >= limits.silent_calls:
            self._waiting.pop(next(iter(self._waiting))).reschedule(0)
        try:
            async with asyncio.timeout(limits.first_seconds) as limit:
                self._waiting[call] = limit
                return await anext(messages)
        except TimeoutError:
            if call in self._waiting:
                why = f"the call has sent no message within {limits.first_seconds:g} seconds"
                raise invalid(f"{why}; send the first one at once") from None
            why = f"more than {limits.silent_calls} calls have sent no message yet, and this is the oldest"
            raise busy(f"{why}; try again, and send the first message at once") from None
        finally:
            self._waiting.pop(call, None)


MARGIN = 2
"""How many times ``message_bytes`` gRPC itself accepts. A choice: a message between the two limits is refused with a
text that has the limit; gRPC refuses larger ones, before it has them in memory."""


class Entrance(grpc.aio.ServerInterceptor):
    """Lets calls in, and reads their messages.

    A method of one message is served as one of a stream of them: otherwise gRPC would wait for the message, without a
    limit, before it calls anything of this package. So the error of an unreadable message is raised where the method
    awaits it.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._first = FirstMessages(gateway.limits)
        self._calls: Counter[str] = Counter()
        """The open calls of each client: of a token, or of an address where no Token is declared."""
        self._open = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The method that is called, behind the entrance."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        serve = self._entered(details.method.rpartition("/")[2], method, many=handler.request_streaming)
        made: Any = grpc
        one, many = made.stream_unary_rpc_method_handler, made.stream_stream_rpc_method_handler
        make = many if handler.response_streaming else one
        read = partial(self._read, handler.request_deserializer, details.method)
        return make(serve, read, handler.response_serializer)

    def _entered(self, name: str, method: Method, *, many: bool) -> Method:
        async def serve(messages: AsyncIterator[Any], context: Any) -> Any:
            try:
                with self._counted(context):
                    return await method(self._all(messages) if many else await self._one(messages), context)
            except Refused as problem:
                self._gateway.figures.call(name, problem.code)
                await abort(context, problem)

        return serve

    @contextlib.contextmanager
    def _counted(self, context: Any) -> Iterator[None]:
        limits, token = self._gateway.limits, token_of(context)
        self._gateway.check_token(token)
        # A client's address without its port: ipv4:10.0.0.7, for example.
        client = context.peer().rpartition(":")[0] if self._gateway.access.open else token
        if self._open >= limits.calls:
            raise busy(f"this gateway has {self._open} open calls, which is its limit; try again, or with another one")
        if self._calls[client] >= limits.client_calls:
            whose = "from this address" if self._gateway.access.open else "with this token"
            raise busy(f"{self._calls[client]} calls {whose} are open, which is the limit of one client; end some")
        self._calls[client] += 1
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._calls[client] -= 1
            if not self._calls[client]:
                del self._calls[client]

    async def _one(self, messages: AsyncIterator[Any]) -> Any:
        try:
            return await self._first.of(messages)
        except StopAsyncIteration:
            raise invalid("the call has sent no message; send one") from None

    async def _all(self, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        try:
            yield await self._first.of(messages)
        except StopAsyncIteration:
            return
        async for message in messages:
            yield message

    def _read(self, parse: Callable[[bytes], Any], method: str, data: bytes) -> Any:
        permitted = self._gateway.limits.message_bytes
        if len(data) > permitted:
            raise invalid(
                f"the message has {len(data)} bytes, and {permitted} are permitted; divide it, or keep large data "
                "elsewhere and send its address"
            )
        try:
            return parse(data)
        except DecodeError as error:
            raise invalid(
                f"the message of {len(data)} bytes is not the one that {method} takes, or a text in it is not UTF-8; "
                "make the client from the application's pipelines.proto"
            ) from error


KEEPALIVE_SECONDS = 10.0
"""How long a connection is silent before the gateway asks the client's machine whether it lives.

A choice: with the time for the answer, a member whose machine has vanished leaves within 20 seconds.
"""
KEEPALIVE_ANSWER_SECONDS = 10.0
"""How long the answer may take. A choice."""


PING_SECONDS = 5.0
"""How often a client may ask. A choice: twice as often as the gateway does."""


def make_server(gateway: Gateway) -> Any:
    """The gRPC server of a gateway, without an address."""
    server = grpc.aio.server(
        interceptors=(Entrance(gateway),),
        options=(
            ("grpc.max_receive_message_length", MARGIN * gateway.limits.message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", int(KEEPALIVE_SECONDS * 1000)),
            ("grpc.keepalive_timeout_ms", int(KEEPALIVE_ANSWER_SECONDS * 1000)),
            # The time of keepalive bounds bytes that are not acknowledged; this one an answer that does not come, as
            # from a process that is stopped. gRPC's own is a minute.
            ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_ANSWER_SECONDS * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", int(PING_SECONDS * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            # Two gateways at one port would each get some of the connections.
            ("grpc.so_reuseport", 0),
        ),
    )
    add: Any = rpc  # The generated code has no types.
    add.add_StreamsServicer_to_server(StreamsService(gateway), server)
    add.add_PipelinesServicer_to_server(PipelinesService(gateway), server)
    add.add_ExchangesServicer_to_server(ExchangesService(gateway), server)
    add.add_EndpointsServicer_to_server(EndpointsService(gateway), server)
    add.add_SchemaServicer_to_server(SchemaService(gateway), server)
    return server


def bind(server: Any, host: str, port: int, tls: TlsFiles = NO_TLS) -> int:
    """Bind the server's port, and return it. Raises :class:`TransportError`, and :class:`ConfigurationError` for TLS
    files that cannot be used."""
    address, bound = format_address(host or "::", port), 0
    with contextlib.suppress(RuntimeError):
        bound = server.add_secure_port(address, tls.server()) if tls.certificate else server.add_insecure_port(address)
    if not bound:
        raise TransportError(
            f"cannot listen on {address}; free the address, use another one, or use port 0",
            code="cannot-listen",
            address=address,
            reason="bind",
        )
    return int(bound)
