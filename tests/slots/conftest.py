"""A Redis for tenancies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wallaroo_spark.registry import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server
