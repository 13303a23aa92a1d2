"""The servers that sinks are tested with: each started once for a run, by the first test that asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar

import pytest

from proving.servers.kafka import KafkaServer
from proving.servers.mariadb import MariaServer
from proving.servers.packages.debian import PackageUnfetched
from proving.servers.postgres import PostgresServer
from wallaroo_spark.registry.embedded import EmbeddedRedis


class Server(Protocol):
    """A server of a test run."""

    def start(self) -> None:
        """Start it and wait until it answers."""

    def remove(self) -> None:
        """End it and remove its files."""


S = TypeVar("S", bound=Server)


def running(server: S) -> Iterator[S]:
    """Start a server, and remove it in the end."""
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that allows prepared transactions."""
    yield from running(PostgresServer())


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka of one broker."""
    yield from running(KafkaServer())


def a_mariadb() -> MariaServer:
    """A MariaDB that is not started; skips the test where there is none."""
    try:
        return MariaServer()
    except PackageUnfetched as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaServer]:
    """A MariaDB."""
    yield from running(a_mariadb())


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of an empty Redis."""
    with EmbeddedRedis() as server:
        yield server.url
