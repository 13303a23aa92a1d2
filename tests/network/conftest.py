"""A real worker, a query that commits its rows, and a proxy on each of its two connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.network.query import Query
from tests.worker.running import Fleet, Running, fleet
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.testing import Proxy


@pytest.fixture
def redis_proxy(redis_server: EmbeddedRedis) -> Iterator[Proxy]:
    """Between the workers and Redis."""
    port = urlsplit(redis_server.url).port
    assert port is not None
    with Proxy(("127.0.0.1", port)) as proxy:
        yield proxy


@pytest.fixture
def workers(redis_server: EmbeddedRedis, redis_proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Workers whose Redis is behind the proxy; the test itself asks Redis directly. A parameter has their options."""
    with ExitStack() as stack:
        made = stack.enter_context(fleet(redis_server.url, **getattr(request, "param", {})))
        made.url = redis_server.url.replace(redis_server.url.rpartition("@")[2], f"{redis_proxy.address}/0")
        yield made


@pytest.fixture
def worker(workers: Fleet) -> Running:
    return workers.start()


@pytest.fixture
def proxy(worker: Running) -> Iterator[Proxy]:
    """Between connectors and the worker."""
    with Proxy(worker.address) as proxy:
        yield proxy


@pytest.fixture
def query(worker: Running) -> Iterator[Query]:
    """Commits in batches whatever the worker has."""
    with Query(worker) as query:
        yield query
