"""Every worker learns where the query stands: at once, again when it is a new one, and nothing of another query."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

from tests.source.fleet import TOKEN, LiveFleet
from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import RegistryError
from wallaroo_spark.inner.calls import COMMITTED, Notice
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.inner.notices import LastCommit
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.receiver.announcer import Announcer
from wallaroo_spark.references import References, VersionedReferences
from wallaroo_spark.registry import EmbeddedRedis, Lease
from wallaroo_spark.runtime.handle import DriverRounds, Waits

A = {"shop-1": {"7": 10}}
B = {"shop-1": {"7": 20}}


@pytest.fixture
def fleet(file_redis: EmbeddedRedis, request: pytest.FixtureRequest) -> Iterator[LiveFleet]:
    with LiveFleet(file_redis.url, request.node.name) as opened:
        yield opened


@pytest.fixture
def make_announcer() -> Iterator[Callable[..., Announcer]]:
    made: list[tuple[Announcer, DriverRounds]] = []
    waits = Waits("receiver 'orders'")

    def make(fleet: LiveFleet, **given: Any) -> Announcer:
        announcer, rounds = Announcer(fleet.registry, TOKEN, **given), DriverRounds("receiver orders", 0.1, waits)
        made.append((announcer, rounds))
        rounds.start(announcer.find_workers)
        return announcer

    yield make
    waits.stopping.set()
    for announcer, rounds in made:
        rounds.join()
        announcer.stop()


def known(fleet: LiveFleet, slot: int) -> tuple[Any, ...]:
    status = fleet.client(slot).status()
    return status["ready"], status["epoch"], status["batch"]


def test_an_epoch_grows_whatever_the_registry_numbers_it(fleet: LiveFleet) -> None:
    announcer = Announcer(fleet.registry, TOKEN)
    assert announcer.next_epoch(7) == 7
    announcer.begin(LastCommit(7, -1, {}))
    assert announcer.next_epoch(3) == 8
    assert announcer.next_epoch(9) == 9


def test_a_worker_that_a_new_redis_numbers_lower_than_the_last_one_is_told(fleet: LiveFleet) -> None:
    fleet.registry.renew(Lease(0, 1, 9 * 10**15, "a worker that is gone", "127.0.0.1:1", "127.0.0.1:1"))
    announcer = Announcer(fleet.registry, TOKEN)
    announcer.find_workers()
    with Redis.from_url(fleet.options.registry) as client:
        client.flushall()
    fleet.start(0)
    announcer.begin(LastCommit(5, 2, A))
    assert known(fleet, 0) == (True, 5, 2)


def test_workers_know_where_the_query_stands_before_it_starts(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer]
) -> None:
    for slot in (0, 1):
        fleet.start(slot)
    announcer = make_announcer(fleet)
    assert announcer.last_commit is None
    announcer.begin(LastCommit(5, 2, A))

    assert [known(fleet, slot) for slot in (0, 1)] == [(True, 5, 2)] * 2
    announcer.commit(5, 3, B)
    assert announcer.settle(SECONDS)
    assert [known(fleet, slot) for slot in (0, 1)] == [(True, 5, 3)] * 2


@pytest.mark.parametrize("versions", [False, True], ids=["plain", "versions of named plans"])
def test_a_worker_that_comes_later_or_takes_over_is_told_all_of_it(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer], versions: bool
) -> None:
    first: References = VersionedReferences.of(A) if versions else A
    second = first.with_changes(B) if isinstance(first, VersionedReferences) else B
    fleet.start(0, own_process=True)
    announcer = make_announcer(fleet)
    announcer.begin(LastCommit(5, 2, first))
    announcer.commit(5, 3, second)
    fleet.kill(0)
    announcer.commit(5, 4, second)
    for slot in (0, 1):
        fleet.start(slot)

    eventually(lambda: [known(fleet, slot) for slot in (0, 1)] == [(True, 5, 4)] * 2)
    assert fleet.connect("shop-1").open("seven", id=7).reference == 20


def test_a_stream_of_which_nobody_can_tell_how_far_it_is_stands_still(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer]
) -> None:
    announcer = make_announcer(fleet)
    announcer.begin(LastCommit(5, 2, A))
    announcer.commit(5, 3, {"shop-2": {"8": 4}}, [("shop-1", "7"), ("shop-1", "9")])

    assert announcer.last_commit == LastCommit(5, 3, {**A, "shop-2": {"8": 4}})


def test_a_late_commit_of_another_query_reaches_no_worker(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer]
) -> None:
    fleet.start(0)
    announcer = make_announcer(fleet)
    announcer.begin(LastCommit(5, 9, B))
    announcer.begin(LastCommit(6, -1, A))
    announcer.commit(5, 10, B)

    assert announcer.last_commit == LastCommit(6, -1, A)
    assert known(fleet, 0) == (True, 6, -1)
    assert fleet.connect("shop-1").open("seven", id=7).reference == 10


def test_a_batch_that_is_not_newer_is_passed_over(fleet: LiveFleet, make_announcer: Callable[..., Announcer]) -> None:
    fleet.start(0)
    announcer = make_announcer(fleet)
    announcer.begin(LastCommit(5, 3, B))
    for batch in (2, 3):
        announcer.commit(5, batch, A)

    assert announcer.last_commit == LastCommit(5, 3, B)


def test_a_worker_that_stands_still_delays_nobody_else(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer]
) -> None:
    fleet.start(0, own_process=True)
    fleet.start(1)
    # This call never returns, so a caller that waits for it would wait forever.
    announcer = make_announcer(fleet, connect=functools.partial(WorkerClient, timeout=600.0))
    announcer.begin(LastCommit(5, 2, A))
    with fleet.stopped(0):
        # As the watcher does: each commit follows when its caller is free again.
        for batch in (3, 4, 5):
            announcer.commit(5, batch, B)
            eventually(lambda batch=batch: known(fleet, 1) == (True, 5, batch))
    # It goes on, and has missed nothing.
    eventually(lambda: known(fleet, 0) == (True, 5, 5))


def test_a_query_begins_although_a_worker_stands_still(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer]
) -> None:
    fleet.start(0, own_process=True)
    fleet.start(1)
    announcer = make_announcer(fleet, connect=functools.partial(WorkerClient, timeout=2.0))
    announcer.find_workers()
    with fleet.stopped(0):
        announcer.begin(LastCommit(5, 2, A))
        eventually(lambda: known(fleet, 1) == (True, 5, 2))
    eventually(lambda: known(fleet, 0) == (True, 5, 2))


def test_an_error_of_this_program_in_telling_a_worker_is_said_and_does_not_end_it(
    fleet: LiveFleet, make_announcer: Callable[..., Announcer], caplog: pytest.LogCaptureFixture
) -> None:
    class Faulty(WorkerClient):
        failed = False

        def tell(self, notice: Notice) -> None:
            if notice.action == COMMITTED and not Faulty.failed:
                Faulty.failed = True
                raise MemoryError("no room for the references")
            super().tell(notice)

    fleet.start(0)
    announcer = make_announcer(fleet, connect=Faulty)
    announcer.begin(LastCommit(5, 2, A))
    announcer.commit(5, 3, B)

    eventually(lambda: known(fleet, 0) == (True, 5, 3))
    assert Faulty.failed
    assert "the commit notice to slot 0 is sent again: no room for the references" in caplog.text


def test_nothing_is_told_before_a_query_has_started(fleet: LiveFleet, make_announcer: Callable[..., Announcer]) -> None:
    fleet.start(0)
    announcer = make_announcer(fleet)
    announcer.commit(5, 3, A)
    announcer.find_workers()
    assert announcer.settle(SECONDS)

    assert known(fleet, 0)[0] is False


def test_known_workers_are_told_while_redis_is_away(make_announcer: Callable[..., Announcer]) -> None:
    with EmbeddedRedis() as redis, LiveFleet(redis.url, "away") as fleet:
        fleet.start(0)
        announcer = make_announcer(fleet)
        announcer.begin(LastCommit(5, 2, A))
        client = fleet.client(0)
        redis.stop()
        announcer.commit(5, 3, B)
        assert announcer.settle(SECONDS)

        assert client.status()["batch"] == 3
        redis.start()


@pytest.mark.parametrize("away", [False, True])
def test_workers_are_looked_for_also_when_the_driver_cannot_renew_its_locks(
    fleet: LiveFleet, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    def fail() -> None:
        raise RegistryError("Redis cannot be reached") if away else RuntimeError("no luck")

    fleet.start(0)
    receiver, announcer = Receiver(None, "orders"), Announcer(fleet.registry, TOKEN)
    monkeypatch.setattr(receiver, "_renew_all", fail)

    with pytest.raises(RegistryError if away else RuntimeError):
        receiver._round(announcer)
    assert set(announcer.workers()) == {0}
    assert receiver._telemetry.driver["registry-errors"] == away
    announcer.stop()
