"""The program as a process, and the servers that bridges read from: each started once, by the first test that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proving.servers.mosquitto import MosquittoServer
from proving.servers.postgres import PostgresServer
from tests.cli.conftest import run
from tests.sinks.conftest import redis_url, running
from wallaroo_spark.testing import FakeWorker

__all__ = ["redis_url", "run"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL whose log may be read."""
    yield from running(PostgresServer())


@pytest.fixture(scope="session")
def mosquitto() -> Iterator[MosquittoServer]:
    """An MQTT broker."""
    yield from running(MosquittoServer())


@pytest.fixture
def worker() -> Iterator[FakeWorker]:
    """A worker without Spark."""
    with FakeWorker() as found:
        yield found
