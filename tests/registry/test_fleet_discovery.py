"""Workers are found by their leases: newest last, and none is forgotten because the registry is away."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.errors import RegistryError
from wallaroo_spark.registry import FleetDiscovery, KnownWorkers, Lease


def lease(slot: int, number: int, flight: str | None = None) -> Lease:
    address = f"10.0.0.{number}:7200" if flight is None else flight
    return Lease(slot, number, number, f"process-{number}", "", address)


def test_a_lease_is_news_once_and_a_worker_without_an_address_is_none() -> None:
    known = KnownWorkers()

    assert known.learn({0: lease(0, 1), 1: lease(1, 2, "")}) == [lease(0, 1)]
    assert known.learn({0: lease(0, 1), 1: lease(1, 2)}) == [lease(1, 2)]
    assert known.addresses() == {0: "10.0.0.1:7200", 1: "10.0.0.2:7200"}


def test_a_worker_whose_lease_is_gone_stays_known_until_another_has_its_slot() -> None:
    known = KnownWorkers()
    known.learn({0: lease(0, 5)})

    assert known.learn({}) == []
    assert known.addresses() == {0: "10.0.0.5:7200"}
    # A Redis that has taken another's place may give out lower numbers.
    assert known.learn({0: lease(0, 3)}) == [lease(0, 3)]
    assert known.addresses() == {0: "10.0.0.3:7200"}


def test_the_known_workers_hold_while_the_registry_is_away_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Mapping[int, Lease] | None] = [{0: lease(0, 1)}, None, None, {0: lease(0, 2)}, None]
    found: list[Lease] = []

    def ask() -> Mapping[int, Lease]:
        answer = answers.pop(0)
        if answer is None:
            raise RegistryError("no answer")
        return answer

    discovery = FleetDiscovery(ask, "the source", found.append)
    with caplog.at_level("WARNING"):
        looks = [discovery.look() for _ in range(3)]

    assert looks == [{0: lease(0, 1)}, None, None]
    assert discovery.addresses() == {0: "10.0.0.1:7200"}
    assert caplog.text.count("the source continues with the known workers: no answer") == 1
    assert discovery.look() == {0: lease(0, 2)}
    assert found == [lease(0, 1), lease(0, 2)]
    discovery.look()
    assert caplog.text.count("continues with the known workers") == 2


def test_of_two_looks_at_once_an_old_answer_does_not_count_after_a_newer_one() -> None:
    asked, may_answer = threading.Event(), threading.Event()
    found: list[Lease] = []
    first = threading.local()

    def ask() -> Mapping[int, Lease]:
        if getattr(first, "slow", False):
            asked.set()
            assert may_answer.wait(SECONDS)
            return {0: lease(0, 1)}
        return {0: lease(0, 2)}

    discovery = FleetDiscovery(ask, "the source", found.append)

    def slow_look() -> None:
        first.slow = True
        discovery.look()

    slow = threading.Thread(target=slow_look)
    quick = threading.Thread(target=discovery.look)
    slow.start()
    assert asked.wait(SECONDS)
    quick.start()
    # Without an order among the looks the second has found its worker by now, and the first takes it back.
    quick.join(0.2)
    may_answer.set()
    for thread in (slow, quick):
        thread.join(SECONDS)

    assert found[-1] == lease(0, 2)
    assert discovery.addresses() == {0: "10.0.0.2:7200"}
