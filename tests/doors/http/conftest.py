"""Running workers with the HTTP door."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.doors.http.client import Client, door
from tests.worker.running import Fleet, fleet
from wallaroo_spark.registry import EmbeddedRedis


@pytest.fixture
def make_fleet(redis_server: EmbeddedRedis) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(fleet(redis_server.url, **options))


@pytest.fixture
def make_door(make_fleet: Callable[..., Fleet]) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Client:
            return stack.enter_context(door(make_fleet, **options))

        yield make


@pytest.fixture
def client(make_door: Callable[..., Client]) -> Client:
    return make_door()
