"""A RabbitMQ for one test run, from Debian's packages ``rabbitmq-server`` and Erlang's.

``python -m proving.servers.rabbitmq`` fetches them in advance.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from proving.servers.guard import Guarded
from proving.servers.packages.debian import unpacked
from wallaroo_spark.registry.embedded import lasting_port

PROGRAM = "usr/lib/rabbitmq/bin/rabbitmq-server"
ERLANG = "usr/lib/erlang"
_ERL = """\
#!/bin/sh
ROOTDIR={root} BINDIR={root}/{runtime}/bin EMU=beam PROGNAME=erl exec {root}/{runtime}/bin/erlexec "$@"
"""


class RabbitServer:
    """One node on a free port of the loopback."""

    def __init__(self) -> None:
        folder = fetched()
        self._guard, self._mapper = Guarded("rabbitmq"), Guarded("epmd")
        self.port = lasting_port(range(3))
        distribution, self._mapper_port = self.port + 1, self.port + 2
        home = self._guard.directory
        (runtime,) = (folder / ERLANG).glob("erts-*")
        # Debian's own one looks for Erlang where packages install it.
        erl = home / "bin" / "erl"
        erl.parent.mkdir()
        erl.write_text(_ERL.format(root=folder / ERLANG, runtime=runtime.name), encoding="utf-8")
        erl.chmod(0o755)
        (home / "rabbit.conf").write_text(f"listeners.tcp.local = 127.0.0.1:{self.port}\n", encoding="utf-8")
        variables = {
            "PATH": f"{erl.parent}:{os.environ['PATH']}",
            "HOME": str(home),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbit.conf"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "logs"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_NODENAME": f"rabbit-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            # The program becomes the server, and starts none that would outlive it.
            "RUNNING_UNDER_SYSTEMD": "true",
            # Erlang's port mapper is a process of its own here: one that a node starts would outlive it.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-start_epmd false",
            "ERL_EPMD_PORT": str(self._mapper_port),
        }
        program = str(folder / PROGRAM)
        self._map = [str(folder / ERLANG / runtime.name / "bin/epmd"), "-port", str(self._mapper_port)]
        self._command = ["env", *(f"{name}={value}" for name, value in variables.items()), program]

    @property
    def url(self) -> str:
        """Its address in the form that clients take."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        self._mapper.start(self._map, lambda: self._answers_at(self._mapper_port, b""))
        self._guard.start(self._command, lambda: self._answers_at(self.port, b"AMQP\0\0\x09\x01"))

    def stop(self) -> None:
        """Kill it; its files stay."""
        self._guard.stop()
        self._mapper.stop()

    def remove(self) -> None:
        """End it and remove its files."""
        self._guard.remove()
        self._mapper.remove()

    def _answers_at(self, port: int, greeting: bytes) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as link:
                link.sendall(greeting)
                return not greeting or bool(link.recv(1))
        except OSError:
            return False


def fetched() -> Path:
    """The folder with the unpacked packages. Raises :class:`PackageUnfetched`."""
    return unpacked("rabbitmq-server", [PROGRAM, f"{ERLANG}/bin/erl"], "erlang")


if __name__ == "__main__":
    fetched()
