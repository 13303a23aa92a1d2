"""The rounds of a driver that runs long jobs under a name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.runtime.handle import DriverHandle, DriverRounds, Vacancy, Waits


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
        self.ending = self.spark_stopped = False

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


def test_a_driver_whose_session_was_stopped_ends_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    topic, jobs, ended = Topic("orders", None, "redis://elsewhere", 0.003), Jobs(), threading.Event()
    topic.stop = ended.set  # type: ignore[method-assign]  # there is nothing to stop
    jobs.spark_stopped = True

    for _ in range(2):
        topic.round(OneLock(), jobs)

    assert ended.wait(SECONDS)
    assert caplog.messages == ["topic orders ends, because its Spark session was stopped"]


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


def test_a_standby_takes_a_lock_at_once_when_it_was_not_renewed_for_its_whole_time() -> None:
    vacancy = Vacancy(grace=5.0)

    assert not vacancy.look(100.0, left=10.0)
    assert not vacancy.look(109.9, left=0.1)
    assert vacancy.look(110.1, left=None)


def test_a_standby_takes_a_lock_at_once_that_nobody_had_at_its_first_look() -> None:
    assert Vacancy(grace=5.0).look(100.0, left=None)


def test_a_standby_leaves_the_driver_time_to_write_the_lock_that_an_emptied_registry_has_lost() -> None:
    vacancy = Vacancy(grace=5.0)

    assert not vacancy.look(100.0, left=10.0)
    assert not vacancy.look(100.2, left=None)
    # The driver has renewed it.
    assert not vacancy.look(101.0, left=10.0)
    # It was released.
    assert not vacancy.look(102.0, left=None)
    assert not vacancy.look(106.9, left=None)
    assert vacancy.look(107.0, left=None)


def test_a_standby_leaves_the_driver_time_to_come_back_after_an_outage_of_the_registry() -> None:
    vacancy = Vacancy(grace=5.0)

    assert not vacancy.look(100.0, left=10.0)
    vacancy.unknown()
    assert not vacancy.look(200.0, left=None)
    assert vacancy.look(205.0, left=None)


def test_a_standby_waits_for_an_outage_of_the_registry_and_then_takes_the_lock(waits: Waits) -> None:
    answers: list[float | RegistryError | None] = [10.0, RegistryError("away", code="registry-unreachable"), None]
    waited: list[int] = []

    def left() -> float | None:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, RegistryError):
            raise answer
        return answer

    waits.stand_by(left, lambda: False, lambda: True, Vacancy(grace=0.0), lambda: waited.append(1))
    assert waited == [1]


def test_a_stop_ends_the_wait_of_a_standby(waits: Waits) -> None:
    with pytest.raises(ConfigurationError, match="was stopped while it was starting"):
        waits.stand_by(lambda: 10.0, lambda: False, lambda: False, Vacancy(grace=5.0), waits.stopping.set)


def test_a_standby_needs_a_registry_that_both_drivers_reach() -> None:
    with pytest.raises(ConfigurationError, match="give registry the URL of a Redis, or leave standby out"):
        DriverHandle.__init__(Topic.__new__(Topic), "orders", None, "embedded", 10.0, standby=True)


def test_a_driver_that_has_lost_its_lock_does_not_come_back_when_the_other_one_has_ended() -> None:
    topic, lock = Topic("orders", None, "redis://elsewhere", 0.003), OneLock("another")

    with pytest.raises(ConfigurationError):
        topic.round(lock, Jobs())
    lock.owner = None
    with pytest.raises(ConfigurationError, match="another"):
        topic.round(lock, Jobs())
    assert lock.owner is None
