"""TLS in front of a Redis, as a proxy would do it: bundled servers are built without it."""

from __future__ import annotations

import select
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from wallaroo_spark.registry import EmbeddedRedis


@contextmanager
def tls_in_front_of(server: EmbeddedRedis, context: ssl.SSLContext) -> Iterator[int]:
    """The loopback port at which the server is reached over TLS, until the block ends."""
    behind = urlsplit(server.url).port

    class Forwarder(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                outer = context.wrap_socket(self.request, server_side=True)
            except OSError:
                return
            with outer, socket.create_connection(("127.0.0.1", behind)) as inner:
                _forward(outer, inner)

    class Proxy(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Proxy(("127.0.0.1", 0), Forwarder) as proxy:
        serving = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield int(proxy.server_address[1])
        proxy.shutdown()
        serving.join()


def _forward(outer: ssl.SSLSocket, inner: socket.socket) -> None:
    """Carry bytes both ways until one side ends."""
    while True:
        ready = [outer] if outer.pending() else select.select([outer, inner], [], [])[0]
        for source, target in ((outer, inner), (inner, outer)):
            if source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                target.sendall(data)
