"""The program as a process, and the servers that bridges read from: each started once, by the first test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proving.servers.postgres import PostgresServer
from tests.cli.conftest import run
from tests.sinks.conftest import running

__all__ = ["run"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL whose log may be read."""
    yield from running(PostgresServer())
