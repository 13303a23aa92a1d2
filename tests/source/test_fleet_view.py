"""The source's view of the workers: the present ones, changes of a slot's worker, and an absent Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from tests.source.fleet import TOKEN, LiveFleet
from tests.waiting import eventually
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.registry import EmbeddedRedis, Lease, Registry
from wallaroo_spark.source.fleet_view import FleetView


@pytest.fixture
def view_of() -> Iterator[Callable[[LiveFleet], FleetView]]:
    opened: list[tuple[FleetView, Registry]] = []

    def make(fleet: LiveFleet) -> FleetView:
        registry = Registry(fleet.options.registry, fleet.options.receiver, attempts=1)
        view = FleetView(registry, TOKEN)
        opened.append((view, registry))
        view.start()
        return view

    yield make
    for view, registry in opened:
        view.stop()
        registry.close()


def test_workers_are_found_as_they_come_and_each_change_is_announced(
    fleet: LiveFleet, view_of: Callable[[LiveFleet], FleetView]
) -> None:
    view = view_of(fleet)
    assert view.slots() == {}
    stamp = view.stamp
    lease = fleet.start(0)
    eventually(lambda: set(view.slots()) == {0})
    fleet.start(1)
    eventually(lambda: set(view.slots()) == {0, 1})

    assert view.wait(stamp, 0) > stamp
    assert view.addresses()[0] == lease.flight
    assert view.workers == 2


def test_a_worker_that_a_new_redis_numbers_lower_than_the_last_one_is_found(
    fleet: LiveFleet, view_of: Callable[[LiveFleet], FleetView]
) -> None:
    fleet.registry.renew(Lease(0, 1, 9 * 10**15, "a worker that is gone", "127.0.0.1:1", "127.0.0.1:1"))
    view = view_of(fleet)
    eventually(lambda: view.addresses() == {0: "127.0.0.1:1"})
    with Redis.from_url(fleet.options.registry) as client:
        client.flushall()
    fleet.publish()
    lease = fleet.start(0)
    eventually(lambda: view.addresses() == {0: lease.flight})
    eventually(view.slots)


def test_a_view_that_starts_twice_looks_once(fleet: LiveFleet, view_of: Callable[[LiveFleet], FleetView]) -> None:
    fleet.start(0)
    view = view_of(fleet)
    eventually(view.slots)
    first = view.slots()[0]
    view.start()

    assert view.slots()[0] is first


def test_connectors_are_known_with_open_streams_and_quiet_time(
    fleet: LiveFleet, view_of: Callable[[LiveFleet], FleetView]
) -> None:
    fleet.start(0)
    fleet.begin()
    view = view_of(fleet)
    view.watch_connectors()
    connector = fleet.connect("shop-1")
    streams = [connector.open(name) for name in ("ended", "open")]
    for stream in streams:
        stream.send(b"x", id=1)
    streams[0].end()

    eventually(lambda: [(c["streams"], c["open"]) for c in view.connectors()] == [(2, 1)])
    assert [c["instance"] for c in view.connectors()] == ["shop-1"]
    before = view.connectors()[0]["idle"]
    eventually(lambda: view.connectors()[0]["idle"] > before + 0.05)
    connector.close()
    eventually(lambda: view.connectors() == [])
    assert view.seen["shop-1"]["streams"] == 2


def test_a_worker_that_dies_is_missed_and_its_successor_is_found(
    fleet: LiveFleet, view_of: Callable[[LiveFleet], FleetView]
) -> None:
    first = fleet.start(0, own_process=True)
    view = view_of(fleet)
    eventually(view.slots)
    fleet.kill(0)
    eventually(lambda: not view.slots())
    assert view.addresses() == {0: first.flight}

    second = fleet.start(0)

    eventually(lambda: view.slots() and view.slots()[0].lease.generation == second.generation)
    assert view.addresses() == {0: second.flight}


def test_known_workers_go_on_being_asked_while_redis_is_away(view_of: Callable[[LiveFleet], FleetView]) -> None:
    with EmbeddedRedis() as redis, LiveFleet(redis.url, "away") as fleet:
        fleet.start(0)
        fleet.begin()
        view = view_of(fleet)
        eventually(view.slots)
        connector = fleet.connect("shop-1")
        stream = connector.open("numbers")
        client = fleet.client(0)
        redis.stop()
        stamp = view.stamp
        stream.send(b"x", id=1)

        eventually(lambda: view.stamp != stamp and client.plan(PlanQuestion()).rows == 1)
        assert set(view.slots()) == {0}
        # An empty Redis knows of no fleet until driver and workers have written it again; the view forgets nothing.
        redis.start()
        fleet.start(1)
        eventually(lambda: set(view.slots()) == {0, 1})
