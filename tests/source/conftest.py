"""A Redis for the tests of the source, and a fleet of real workers for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.source.fleet import LiveFleet
from wallaroo_spark.registry import EmbeddedRedis

_numbers = itertools.count()


@pytest.fixture
def fleet(redis_server: EmbeddedRedis) -> Iterator[LiveFleet]:
    """No worker runs yet; the receiver's name is the test's own."""
    with LiveFleet(redis_server.url, f"source-{next(_numbers)}") as opened:
        yield opened
