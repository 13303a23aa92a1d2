"""The OTLP door of one worker: the gRPC services to which exporters and Collectors send.

The bodies are neither decompressed nor parsed here. A request's credentials and the memory are checked before its body
is read, which gRPC allows where the method is taken for one with a stream of requests: on the wire there is no
difference. Source: ``docs/doors/opentelemetry.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from wallaroo_spark import transport
from wallaroo_spark.doors.ground import Ground
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.otlp.intake import DOOR, Intake, due
from wallaroo_spark.doors.otlp.status import code_of, of_otlp, packed, text_of
from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.transport import format_address

log = one_line(logging.getLogger("wallaroo_spark.doors"))

SERVICES = {
    f"/opentelemetry.proto.collector.{package}.v1.{service}/Export": signal
    for signal, package, service in (
        ("logs", "logs", "LogsService"),
        ("metrics", "metrics", "MetricsService"),
        ("traces", "trace", "TraceService"),
    )
}
"""The signal of each method."""
READ_SECONDS = 30.0
"""Time within which the body of a request must come. A choice: longer than the time-out of exporters."""
READING_SHARE = 4
"""The part of the memory that bodies which are being read may take: one of so many parts."""
MOST_STREAMS = 128
"""The most requests of one connection at a time; gRPC's clients wait with more. A choice."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_GZIP_OR_NONE = 1 << 0 | 1 << 2
"""Bits of gRPC's compression algorithms."""
_PAUSE_SECONDS = 0.1


async def open_door(ground: Ground, options: Options, stopped: asyncio.Event) -> OtlpDoor | None:
    """Open the door at the port of the slot; None when ``stopped`` is set before the port is free."""
    assert options.otlp_port is not None
    door = OtlpDoor(ground, options)
    port = options.otlp_port + ground.slot if options.otlp_port else 0
    if not await door.listen(port, stopped):
        return None
    return door


class OtlpDoor(grpc.GenericRpcHandler):
    """The gRPC server of the door."""

    def __init__(self, ground: Ground, options: Options) -> None:
        self.port = 0
        self._ground = ground
        self._options = options
        self._intake = Intake(ground, options)
        longest = 2 * options.max_frame_bytes
        readers = options.memory_budget // READING_SHARE // longest
        self._reading = asyncio.Semaphore(max(1, readers))
        self._server: Any = grpc.aio.server(
            options=(
                # A compressed body may be a bomb, and gRPC has no limit for what comes out of it.
                ("grpc.per_message_decompression", 0),
                ("grpc.compression_enabled_algorithms_bitset", _GZIP_OR_NONE),
                # Of a body that is somewhat too long, the refusal says what to do.
                ("grpc.max_receive_message_length", longest),
                ("grpc.max_concurrent_streams", MOST_STREAMS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                # Two workers at one port would each get some of the connections.
                ("grpc.so_reuseport", 0),
            )
        )
        self._server.add_generic_rpc_handlers((self,))

    @property
    def url(self) -> str:
        """What exporters take as their endpoint, without a scheme."""
        host = self._options.host
        if self._options.advertise:
            host, _ = transport.parse_address(
                transport.advertised(self._options.advertise, self._ground.slot, self.port)
            )
        else:
            host = transport.reachable_host(host, self._options.registry)
        return format_address(host, self.port)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their answer."""
        return self._intake.waiting

    @property
    def ports(self) -> list[int]:
        """The ports on which it listens."""
        return [self.port]

    @property
    def connections(self) -> int | None:
        """The number of its connections, which gRPC does not tell."""
        return None

    @property
    def requests(self) -> dict[str, int]:
        """The requests that wait for their commit, by the instance of their client."""
        return self._ground.requests(f"{DOOR}/")

    async def listen(self, port: int, stopped: asyncio.Event) -> bool:
        """Begin to serve; waits for a port that is in use. False when ``stopped`` is set meanwhile."""
        until = time.monotonic() + transport.FREE_SECONDS
        address = format_address(self._options.host or "::", port)
        while not stopped.is_set():
            with contextlib.suppress(RuntimeError):
                self.port = self._bind(address)
            if self.port:
                await self._server.start()
                return True
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"cannot listen on {address}; free the port, or choose another one",
                    code="cannot-listen",
                    address=address,
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _PAUSE_SECONDS)
        return False

    def _bind(self, address: str) -> int:
        options = self._options
        if not options.tls_certificate:
            return int(self._server.add_insecure_port(address))
        chain, key = transport.read_pair(options.tls_certificate, options.tls_key)
        authority = transport.read_authority(options.tls_ca) if options.tls_ca else None
        credentials = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=bool(authority))
        return int(self._server.add_secure_port(address, credentials))

    async def close(self, reason: str, seconds: float) -> None:
        """Take no new request, and end when those under way are answered."""
        self._intake.leaving = reason or "it stops"
        await self._server.stop(seconds)

    # As gRPC's handler.

    def service(self, details: Any) -> Any:
        """See ``grpc.GenericRpcHandler``."""
        signal = SERVICES.get(details.method)
        if signal is None:
            return None
        return grpc.stream_unary_rpc_method_handler(functools.partial(self._export, signal))

    async def _export(self, signal: str, bodies: AsyncIterator[bytes], context: Any) -> bytes:
        problem: Problem
        try:
            until = due(context.time_remaining())
            sender = self._sender(context)
            self._intake.admit()
            await self._intake.opened(until)
            await self._intake.export(signal, await self._read(bodies), until, sender)
            # An answer without fields: all was accepted.
            return b""
        except Problem as found:
            problem = of_otlp(found)
            self._ground.host.refuse(problem.code, str(context.peer()), "", problem.detail)
        except Exception:
            log.exception("slot %d: an OTLP request of %s could not be answered", self._ground.slot, context.peer())
            self._ground.host.count("internal-errors", 1)
            problem = Problem("internal-error", "an error of this program; the worker's log has it")
        details = (("grpc-status-details-bin", packed(problem)),)
        await context.abort(_CODES[code_of(problem)], text_of(problem), details)
        raise AssertionError

    async def _read(self, bodies: AsyncIterator[bytes]) -> bytes:
        """The one message of a request."""
        try:
            async with asyncio.timeout(READ_SECONDS), self._reading:
                async for body in bodies:
                    return body
        except TimeoutError:
            raise Problem("otlp-full", f"the body did not come within {READ_SECONDS:g} s; send again") from None
        raise Problem("otlp-body-unreadable", "the request has no message")

    def _sender(self, context: Any) -> str:
        """The name of who sends; empty where it has none. Raises :class:`Problem` unless the request has a secret."""
        senders = self._ground.senders
        if senders.open:
            return ""
        given = dict(context.invocation_metadata()).get("authorization", "")
        scheme, _, token = str(given).partition(" ")
        name = senders.who(token.strip().encode()) if scheme.lower() == "bearer" else None
        if name is None:
            raise Problem(
                "otlp-unauthorized",
                f"the request needs the metadata authorization: Bearer with {senders.secret}, as with "
                "OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20SECRET",
            )
        return name
