"""A real Redis for the tests of the registry; each test has a receiver of its own in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.waiting import eventually
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry

_numbers = itertools.count()


@pytest.fixture
def receiver() -> str:
    return f"orders-{next(_numbers)}"


@pytest.fixture
def registry(redis_server: EmbeddedRedis, receiver: str) -> Iterator[Registry]:
    with Registry(redis_server.url, receiver, lease_seconds=60) as opened:
        yield opened


@pytest.fixture
def client(redis_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as opened:
        yield opened


@pytest.fixture
def empty_redis(client: redis.Redis) -> Callable[[], None]:
    def empty() -> None:
        client.flushall()

    return empty


@pytest.fixture
def acquire(registry: Registry) -> Callable[..., Lease]:
    """Acquire a lease that must be free."""

    def take(slot: int = 0, submission: int = 1, holder: str = "w-1") -> Lease:
        lease = registry.acquire(slot, submission, holder, f"{holder}:7100", f"{holder}:7200")
        assert lease is not None
        return lease

    return take


@pytest.fixture
def acquire_expired(redis_server: EmbeddedRedis, receiver: str, registry: Registry) -> Callable[..., Lease]:
    """Take a lease and wait until it has expired."""

    def take(slot: int = 0, submission: int = 1, holder: str = "w-1") -> Lease:
        with Registry(redis_server.url, receiver, lease_seconds=0.01) as brief:
            lease = brief.acquire(slot, submission, holder, f"{holder}:7100", "")
        assert lease is not None
        eventually(lambda: slot not in registry.leases())
        return lease

    return take
