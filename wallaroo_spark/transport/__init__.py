"""Byte streams between two peers: over TCP, over TLS, and in memory for tests.

No code in this package depends on the protocol. A :class:`ByteStream` carries bytes in order, with back-pressure in
both directions, and has the same interface over TCP, TLS and memory.
"""

from __future__ import annotations

from wallaroo_spark.transport.address import advertised, format_address, parse_address, parse_addresses
from wallaroo_spark.transport.base import ByteStream, Handler, Listener
from wallaroo_spark.transport.memory import pair
from wallaroo_spark.transport.port_handover import serve_once_free
from wallaroo_spark.transport.reach import open_access_warning, reachable_host, refuses
from wallaroo_spark.transport.tcp import connect, serve
from wallaroo_spark.transport.tls import client_context, read_authority, read_pair, server_context

__all__ = [
    "ByteStream",
    "Handler",
    "Listener",
    "advertised",
    "client_context",
    "connect",
    "format_address",
    "open_access_warning",
    "pair",
    "parse_address",
    "parse_addresses",
    "reachable_host",
    "read_authority",
    "read_pair",
    "refuses",
    "serve",
    "serve_once_free",
    "server_context",
]
