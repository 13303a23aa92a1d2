"""A Mosquitto, an MQTT broker, for one test run, from Debian's package ``mosquitto``.

``python -m proving.servers.mosquitto`` fetches it in advance where the system has none.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from proving.servers.guard import Guarded, GuardedServer
from proving.servers.packages.debian import environment, unpacked
from wallaroo_spark.registry.embedded import lasting_port

PROGRAM = "usr/sbin/mosquitto"


class MosquittoServer(GuardedServer):
    """A broker on a free port of the loopback that lets everybody in, and keeps what clients have not acknowledged."""

    def __init__(self) -> None:
        installed = shutil.which("mosquitto")
        libraries = "" if installed else environment(fetched())["LD_LIBRARY_PATH"]
        self._guard = Guarded("mosquitto", "TERM")
        self.port = lasting_port()
        settings = self._guard.directory / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "max_inflight_messages 0", "user root"]
        settings.write_text("\n".join([*lines, "persistence false", ""]), encoding="utf-8")
        command = [installed or str(fetched() / PROGRAM), "-c", str(settings)]
        self._command = ["env", f"LD_LIBRARY_PATH={libraries}", *command] if libraries else command

    @property
    def address(self) -> str:
        """Where it listens, ``host:port``."""
        return f"127.0.0.1:{self.port}"

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 2).close()
        except OSError:
            return False
        return True


def fetched() -> Path:
    """The folder with the unpacked package. Raises :class:`PackageUnfetched`."""
    return unpacked("mosquitto", [PROGRAM])


if __name__ == "__main__":
    fetched()
