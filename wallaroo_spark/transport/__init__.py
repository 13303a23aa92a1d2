"""Byte streams between two peers, over TCP and TLS.

No code in this package depends on the protocol. A :class:`ByteStream` carries bytes in order, with back-pressure in
both directions.
"""

from wallaroo_spark.transport.address import advertised, format_address, parse_address, parse_addresses
from wallaroo_spark.transport.reach import listens, open_access_warning, reachable_host
from wallaroo_spark.transport.tcp import (
    FREE_SECONDS,
    ByteStream,
    Handler,
    Listener,
    connect,
    once_free,
    serve,
    serve_once_free,
)
from wallaroo_spark.transport.tls import client_context, read_authority, read_pair, server_context
