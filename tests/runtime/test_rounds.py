"""The rounds of a driver that runs long jobs under a name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.runtime.handle import DriverHandle, DriverRounds, Waits


class OneLock:
    """A registry with one lock."""

    def __init__(self, owner: str | None = None) -> None:
        self.owner = owner

    def lock(self, name: str, owner: str, seconds: float) -> bool:
        """Take or renew the lock."""
        self.owner = self.owner or owner
        return self.owner == owner

    def locked_by(self, name: str) -> str | None:
        """The owner."""
        return self.owner

    def leases(self) -> dict[int, Any]:
        """No leases."""
        return {}


class Embedded:
    """A registry of this process."""

    def __init__(self) -> None:
        self.running = False

    def start(self) -> str:
        """Start it."""
        self.running = True
        return "redis://here"


class Jobs:
    """Jobs that notice when they are expected to end."""

    def __init__(self) -> None:
        self.ending = False

    def expect_end(self) -> None:
        """Submit nothing again."""
        self.ending = True


@pytest.fixture
def waits() -> Iterator[Waits]:
    """Ends the rounds of a test."""
    made = Waits("topic orders")
    yield made
    made.stopping.set()


class Topic(DriverHandle):
    """A driver without jobs of its own."""

    KIND, TASK, LOCK = "topic", "publisher", "topic"

    def round(self, registry: Any, jobs: Any) -> None:
        """One round, with these parts in place of those of a start."""
        self._leases, self._jobs = registry, jobs
        self._renew()


def rounds_of(waits: Waits) -> DriverRounds:
    """Rounds that follow each other at once."""
    return DriverRounds("topic orders", 0.003, waits)


def in_use() -> ConfigurationError:
    """The error for a lock that another driver has."""
    return ConfigurationError("another driver has the name", code="name-in-use")


def test_a_round_renews_the_lock_and_starts_the_registry_of_the_process_again() -> None:
    registry, embedded, jobs = OneLock(), Embedded(), Jobs()
    topic = Topic("orders", None, "redis://elsewhere", 0.003)
    topic._embedded = embedded  # type: ignore[assignment]  # the part that is used

    topic.round(registry, jobs)

    assert registry.owner == topic.owner
    assert embedded.running
    assert not jobs.ending


def test_a_driver_that_has_lost_its_lock_submits_no_job_again() -> None:
    jobs = Jobs()

    with pytest.raises(ConfigurationError, match=r"topic 'orders' is run by another driver \(another\)"):
        Topic("orders", None, "redis://elsewhere", 0.003).round(OneLock("another"), jobs)
    assert jobs.ending


def test_an_error_is_kept_until_a_round_succeeds_and_logged_once(
    waits: Waits, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, counted, away = rounds_of(waits), threading.Semaphore(0), threading.Event()
    away.set()

    def work() -> None:
        counted.release()
        if away.is_set():
            raise RegistryError("Redis cannot be reached", code="registry-unreachable")

    rounds.start(work)
    for _ in range(3):
        assert counted.acquire(timeout=SECONDS)
    assert rounds.error == "Redis cannot be reached"
    away.clear()
    eventually(lambda: rounds.error == "")
    waits.stopping.set()
    rounds.join()
    assert [record.getMessage() for record in caplog.records] == [
        "topic orders: an update of the registry failed and is retried: Redis cannot be reached"
    ]


def test_rounds_go_on_after_an_error_of_this_program(waits: Waits) -> None:
    rounds, counted = rounds_of(waits), threading.Semaphore(0)

    def work() -> None:
        counted.release()
        raise RuntimeError("no luck")

    rounds.start(work)
    for _ in range(3):
        assert counted.acquire(timeout=SECONDS)
    assert rounds.error == "no luck"


def test_an_owner_may_end_the_rounds_when_its_name_is_lost(waits: Waits) -> None:
    rounds, lost = rounds_of(waits), []

    def end(error: ConfigurationError) -> None:
        lost.append(error.message)
        rounds.end()

    def work() -> None:
        raise in_use()

    rounds.start(work, end)
    rounds.join()

    assert lost == ["another driver has the name"]
    assert rounds.error == ""
