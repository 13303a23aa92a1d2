"""Workers in plain text, behind TLS, and behind TLS both ways; whatever they log must hold nothing secret."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.pems import Pems
from tests.security.keys import secrets_of
from tests.worker.running import TOKEN, Fleet, Running, fleet
from wallaroo_spark.inner.client import status_token
from wallaroo_spark.registry import EmbeddedRedis


class Ear(logging.Handler):
    """Everything that is logged while the tests of this folder run, tracebacks included."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(scope="package")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture(scope="package")
def password(redis_server: EmbeddedRedis) -> str:
    return urlsplit(redis_server.url).password or ""


@pytest.fixture(scope="package")
def ear(password: str) -> Iterator[Ear]:
    heard, package = Ear(), logging.getLogger("wallaroo_spark")
    before = package.level
    package.addHandler(heard)
    package.setLevel(logging.DEBUG)
    yield heard
    package.removeHandler(heard)
    package.setLevel(before)
    assert [line for line in heard.lines if any(secret in line for secret in secrets_of(password))] == []


@pytest.fixture
def own_logging() -> Iterator[None]:
    """A command configures logging for a process of its own; the handler of the test must still get the later
    records."""
    package = logging.getLogger("wallaroo_spark")
    before = package.handlers[:], package.level, package.propagate
    yield
    package.handlers[:], package.level, package.propagate = before


@pytest.fixture(autouse=True)
def nothing_secret_is_printed(ear: Ear, password: str, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Arrow's own logging goes to standard error."""
    yield
    shown = "".join(capfd.readouterr())
    assert [secret for secret in secrets_of(password) if secret in shown] == []


@pytest.fixture(scope="package")
def plain_fleet(redis_server: EmbeddedRedis, ear: Ear) -> Iterator[Fleet]:
    with fleet(redis_server.url) as made:
        yield made


@pytest.fixture(scope="package")
def plain(plain_fleet: Fleet) -> Running:
    return plain_fleet.start()


@pytest.fixture(scope="package")
def sealed_fleet(redis_server: EmbeddedRedis, ear: Ear, pems: Pems) -> Iterator[Fleet]:
    tls = {"tls_certificate": pems.server, "tls_key": pems.server_key, "tls_workers_ca": pems.ca}
    with fleet(redis_server.url, **tls) as made:
        made.registry.publish_fleet({"status_token": status_token(TOKEN), "workers": "1"})
        yield made


@pytest.fixture(scope="package")
def sealed(sealed_fleet: Fleet) -> Running:
    """Its connectors need no certificate."""
    return sealed_fleet.start()


@pytest.fixture(scope="package")
def mutual(redis_server: EmbeddedRedis, ear: Ear, pems: Pems) -> Iterator[Running]:
    """Its connectors must show a certificate, in which their instance is named."""
    tls = {"tls_certificate": pems.server, "tls_key": pems.server_key, "tls_ca": pems.ca, "tls_bind_instances": True}
    with fleet(redis_server.url, **tls) as made:
        yield made.start()
