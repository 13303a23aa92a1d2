"""A bench whose state is valid after every event, and workers that really run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.worker.bench import Bench
from tests.worker.running import Fleet, Running, fleet
from wallaroo_spark.registry import EmbeddedRedis


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(**options))
        return made[-1]

    yield make
    for bench in made:
        # Shown where the test, or its teardown, fails.
        print("the last events:", *bench.state.story.lines(), sep="\n")
        bench.validate()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def make_fleet(redis_server: EmbeddedRedis) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:
        yield lambda url="", **options: stack.enter_context(fleet(url or redis_server.url, **options))


@pytest.fixture
def worker(make_fleet: Callable[..., Fleet]) -> Running:
    return make_fleet().start()
