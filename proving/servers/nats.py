"""A NATS server with JetStream for one test run, from Debian's package ``nats-server``.

``python -m proving.servers.nats`` fetches it in advance where the system has none.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from proving.servers.guard import Guarded, GuardedServer
from proving.servers.packages.debian import unpacked
from wallaroo_spark.registry.embedded import lasting_port

PROGRAM = "usr/sbin/nats-server"


class NatsServer(GuardedServer):
    """A server on a free port of the loopback that lets everybody in."""

    def __init__(self) -> None:
        program = shutil.which("nats-server") or str(fetched() / PROGRAM)
        self._guard = Guarded("nats")
        self.port = lasting_port()
        self._command = [program, "-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self._guard.directory)]

    @property
    def url(self) -> str:
        """Its address in the form that clients take."""
        return f"nats://127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as link:
                # It greets a client when it serves.
                return link.recv(4) == b"INFO"
        except OSError:
            return False


def fetched() -> Path:
    """The folder with the unpacked package. Raises :class:`PackageUnfetched`."""
    return unpacked("nats-server", [PROGRAM])


if __name__ == "__main__":
    fetched()
