"""A MariaDB for one test run, from Debian's packages ``mariadb-server-core`` and ``mariadb-client-core``.

``python -m proving.servers.mariadb`` fetches them in advance.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from proving.servers.guard import START_SECONDS, Guarded, GuardedServer, ServerFailed
from proving.servers.packages.debian import environment, unpacked
from wallaroo_spark.registry.embedded import lasting_port

SERVER, CLIENT = "usr/sbin/mariadbd", "usr/bin/mariadb"
SHARED = "usr/share/mysql"
_SYSTEM = ("mysql_system_tables.sql", "mysql_system_tables_data.sql")


class MariaServer(GuardedServer):
    """A server on a free port of the loopback, with the database ``shop``; its user ``root`` needs no password.

    :meth:`stop` kills it.
    """

    def __init__(self) -> None:
        folder = server()
        self._guard = Guarded("mariadb")
        self.port = lasting_port()
        self._data = self._guard.directory / "data"
        self._data.mkdir()
        libraries = environment(folder)["LD_LIBRARY_PATH"]
        settings = {
            "user": "root",
            "datadir": self._data,
            "lc-messages-dir": folder / SHARED,
            "innodb-log-file-size": "8M",
            "innodb-buffer-pool-size": "32M",
            "innodb-lock-wait-timeout": 5,
        }
        program = ["env", f"LD_LIBRARY_PATH={libraries}", str(folder / SERVER), "--no-defaults"]
        program += [f"--{name}={value}" for name, value in settings.items()]
        self._make_system_tables(folder / SHARED, [*program, "--bootstrap"])
        net = {"port": self.port, "bind-address": "127.0.0.1", "socket": self._guard.directory / "socket"}
        self._command = [*program, *(f"--{name}={value}" for name, value in net.items())]

    def _make_system_tables(self, scripts: Path, command: list[str]) -> None:
        statements = ["CREATE DATABASE mysql;", "USE mysql;", "SET @auth_root_socket = NULL;"]
        statements += [(scripts / name).read_text(encoding="utf-8") for name in _SYSTEM]
        done = subprocess.run(
            command,
            input="\n".join([*statements, "CREATE DATABASE shop CHARACTER SET utf8mb4;\n"]),
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        if done.returncode:
            self._guard.remove()
            raise ServerFailed(f"{SERVER}: {done.stderr[-2000:]}")

    def url(self, user: str = "root", password: str = "") -> str:
        """The URL of the database ``shop`` for SQLAlchemy."""
        return f"mariadb+pymysql://{user}{password and ':'}{password}@127.0.0.1:{self.port}/shop"

    def ask(self, query: str) -> list[list[str]]:
        """The rows that MariaDB's own client reads, with NULL as a text."""
        folder = client()
        command = [str(folder / CLIENT), "--no-defaults", "--batch", "--raw", "--skip-column-names", "--user=root"]
        command += ["--protocol=tcp", "--host=127.0.0.1", f"--port={self.port}", "--default-character-set=utf8mb4"]
        done = subprocess.run(
            [*command, f"--execute={query}", "shop"],
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
        if done.returncode:
            raise ServerFailed(done.stderr)
        return [line.split("\t") for line in done.stdout.splitlines()]

    def _answers(self) -> bool:
        try:
            return bool(self.ask("SELECT 1"))
        except ServerFailed:
            return False


def server() -> Path:
    """The folder with the unpacked server. Raises :class:`PackageUnfetched`."""
    return unpacked("mariadb-server-core", [SERVER, *(f"{SHARED}/{name}" for name in _SYSTEM)])


def client() -> Path:
    """The folder with the unpacked client. Raises :class:`PackageUnfetched`."""
    return unpacked("mariadb-client-core", [CLIENT])


if __name__ == "__main__":
    server()
    client()
