"""A reading task leaves its connection to the next task of its process, unless it failed or has been idle for long."""

from __future__ import annotations

import contextlib
import pickle

import pytest

from tests.source.fleet import LiveFleet
from tests.source.test_ranges import feed, ids, numbers, of_shop, partition
from tests.waiting import eventually
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.registry import Registry
from wallaroo_spark.source import fleet_view, ranges
from wallaroo_spark.source.fleet_view import KeptClients
from wallaroo_spark.source.ranges import RangePartition, read_ranges


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the clients that were made; the process begins without kept ones."""
    found: list[str] = []

    class Counted(WorkerClient):
        def __init__(self, address: str, token: str, **options: object) -> None:
            super().__init__(address, token, **options)  # type: ignore[arg-type]  # options of several types
            found.append(address)

    monkeypatch.setattr(fleet_view, "WorkerClient", Counted)
    monkeypatch.setattr(ranges, "KEPT", KeptClients())
    return found


def read(part: RangePartition) -> list[int]:
    part = pickle.loads(pickle.dumps(part))
    return ids(read_ranges(part, lambda: Registry(part.options.registry, part.options.receiver, attempts=1)))


def test_one_connection_serves_task_after_task(fleet: LiveFleet, made: list[str]) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 50))
    eventually(lambda: fleet.held(0) == 50)

    for _ in range(3):
        assert read(partition(fleet, of_shop(10, 30))) == list(range(11, 31))
    assert len(made) == 1


def test_a_connection_that_was_idle_for_long_is_not_taken_over(
    fleet: LiveFleet, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 50))
    eventually(lambda: fleet.held(0) == 50)
    monkeypatch.setattr(fleet_view, "KEPT_SECONDS", -1.0)

    for _ in range(2):
        assert read(partition(fleet, of_shop(10, 30))) == list(range(11, 31))
    assert len(made) == 2


def test_a_task_that_ends_in_the_middle_leaves_no_connection(fleet: LiveFleet, made: list[str]) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 50))
    eventually(lambda: fleet.held(0) == 50)

    part = partition(fleet, of_shop(10, 30), of_shop(50, 60))
    rows = read_ranges(part, lambda: Registry(part.options.registry, part.options.receiver, attempts=1))
    with contextlib.closing(rows):  # type: ignore[type-var]  # a generator
        next(rows)
    assert read(partition(fleet, of_shop(10, 30))) == list(range(11, 31))
    assert len(made) == 2


def test_tasks_of_one_process_at_the_same_time_have_connections_of_their_own(made: list[str]) -> None:
    kept = KeptClients()
    first, second = (kept.take("127.0.0.1:1", "token", None) for _ in range(2))
    assert first is not second
    kept.keep(first, "token", None)
    assert kept.take("127.0.0.1:1", "another token", None) is not first
    assert kept.take("127.0.0.1:1", "token", None) is first
    assert len(made) == 3


def test_a_task_asks_no_worker_that_it_does_not_need(fleet: LiveFleet, made: list[str]) -> None:
    fleet.start(0)
    fleet.begin()
    feed(fleet, numbers(1, 50))
    eventually(lambda: fleet.held(0) == 50)
    addresses = {slot: lease.flight for slot, lease in fleet.registry.leases().items()}
    addresses |= {slot: f"127.0.0.1:{slot}" for slot in range(1, 64)}

    assert read(partition(fleet, of_shop(10, 30), addresses=addresses)) == list(range(11, 31))
    assert made == [addresses[0]]
