"""The gRPC listener of a gateway: address, TLS, limits and keepalive."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc

from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.errors import TransportError
from wallaroo_spark.gateway.server.credentials import NO_TLS, TlsFiles
from wallaroo_spark.gateway.server.entrance import MARGIN, Entrance
from wallaroo_spark.gateway.server.ephemeral import EndpointsService, ExchangesService
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.services import PipelinesService, SchemaService, StreamsService
from wallaroo_spark.transport import format_address

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
