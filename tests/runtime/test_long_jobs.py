"""Jobs that never end: they are submitted again, end when asked, and must leave a task slot for batches."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.registry import Lease
from wallaroo_spark.runtime import handle, long_jobs, spark_checks
from wallaroo_spark.runtime.handle import Waits
from wallaroo_spark.runtime.job_errors import is_permanent
from wallaroo_spark.runtime.long_jobs import Attendance, JobRecord, LongJobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Context:
    """As much of a SparkContext as local masters need."""

    master: str


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[3]", 3), ("local[3, 2]", 3), ("local[*]", os.cpu_count()), ("local-cluster[2,3,1024]", 6)],
)
def test_task_slots_are_read_from_the_master(master: str, slots: int) -> None:
    assert spark_checks.count_task_slots(Context(master)) == slots


def test_workers_that_would_take_every_task_slot_are_refused(spark: SparkSession) -> None:
    spark_checks.task_slots(spark, 3)

    with pytest.raises(ConfigurationError) as refused:
        spark_checks.task_slots(spark, 4)

    assert refused.value.message == (
        "4 workers and the query need 5 task slots, and local[4] has 4: no batch would ever run; use workers=3, "
        "or local[5] or more"
    )


@pytest.mark.parametrize(
    "master", ["local[4]", "spark://127.0.0.1:7077", "spark://localhost:7077", "spark://[::1]:7077"]
)
def test_an_embedded_registry_serves_one_machine(master: str) -> None:
    spark_checks.registry_reach("embedded", master)


@pytest.mark.parametrize("master", ["spark://10.0.0.7:7077", "yarn", "k8s://https://cluster:6443", "connect"])
def test_an_embedded_registry_on_several_machines_is_refused(master: str) -> None:
    spark_checks.registry_reach("redis://host", master)

    with pytest.raises(
        ConfigurationError, match=r"registry=embedded is for one machine, and .* may have several; give"
    ):
        spark_checks.registry_reach("embedded", master)


class Jobs:
    """A session in which the jobs are threads that run until they are released; a job of another name fails at once."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.saved = 0
        self.failures = 0
        self.error = "noise\nCaused by: java.io.IOException: the executor is gone\nmore noise"

    def addTag(self, tag: str) -> None:
        pass

    def interruptTag(self, tag: str) -> None:
        self.gate.set()

    def range(self, *numbers: int) -> Jobs:
        return self

    def mapInPandas(self, work: Any, schema: str) -> Jobs:
        return self

    @property
    def write(self) -> Jobs:
        return self

    def format(self, name: str) -> Jobs:
        return self

    def mode(self, name: str) -> Jobs:
        return self

    def save(self) -> None:
        self.saved += 1
        if self.saved <= self.failures:
            raise RuntimeError(self.error)
        assert self.gate.wait(SECONDS)


def nothing(number: int, submission: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    return lambda rows: rows


def test_a_job_that_fails_is_submitted_again_under_a_new_number() -> None:
    session, numbers = Jobs(), iter([7, 8, 9])
    session.failures = 2
    jobs = LongJobs(session, 1, "test", "job {number}", lambda: next(numbers), nothing)
    (record,) = jobs.records

    jobs.start()
    eventually(lambda: session.saved == 3)
    taken = jobs.slots_taken()
    jobs.join(SECONDS, session.gate.set)

    assert (record.submissions, record.submission) == (3, 9)
    assert record.last_error == "IOException: the executor is gone"
    assert (taken, jobs.slots_taken()) == (1, 0)


@pytest.mark.parametrize(
    ("error", "warnings"), [("ModuleNotFoundError: No module named 'redis'", 1), ("java.io.IOException: no disk", 2)]
)
def test_an_error_that_ends_the_start_is_not_announced_as_another_submission(
    caplog: pytest.LogCaptureFixture, error: str, warnings: int
) -> None:
    session = Jobs()
    session.failures, session.error = 2, error
    jobs = LongJobs(session, 1, "test", "job {number}", lambda: 1, nothing)

    jobs.start()
    eventually(lambda: session.saved == 3)
    jobs.join(SECONDS, session.gate.set)

    assert caplog.text.count("its job failed and is submitted again") == warnings


def test_a_registry_that_is_away_delays_a_submission() -> None:
    session = Jobs()
    answers: Iterator[RegistryError | int] = iter([RegistryError("Redis is away"), 5])

    def number() -> int:
        answer = next(answers)
        if isinstance(answer, RegistryError):
            raise answer
        return answer

    jobs = LongJobs(session, 1, "test", "job {number}", number, nothing)
    jobs.start()
    eventually(lambda: session.saved == 1)
    jobs.join(SECONDS, session.gate.set)

    assert (jobs.records[0].submissions, jobs.records[0].last_error) == (1, "Redis is away")


def test_a_job_that_does_not_end_when_asked_is_interrupted() -> None:
    session = Jobs()
    jobs = LongJobs(session, 1, "test", "job {number}", lambda: 1, nothing)
    jobs.start()
    eventually(lambda: session.saved == 1)

    jobs.join(0.1, lambda: None)

    assert jobs.slots_taken() == 0


def test_running_jobs_count(spark: SparkSession) -> None:
    session = Jobs()
    jobs = LongJobs(session, 2, "test", "job {number}", lambda: 1, nothing)
    jobs.start()
    try:
        spark_checks.task_slots(spark, 1, kind="publishers")
        with pytest.raises(ConfigurationError) as refused:
            spark_checks.task_slots(spark, 2, kind="publishers")
    finally:
        jobs.join(SECONDS, session.gate.set)

    assert refused.value.message == (
        "2 publishers, 2 workers and publishers that run already and the query need 5 task slots, and local[4] has 4: "
        "no batch would ever run; use fewer publishers, or local[5] or more"
    )


def test_a_start_asks_a_registry_that_is_away_again() -> None:
    answers: list[Exception | int] = [RegistryError("away"), RegistryError("still away"), 7]

    def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert Waits("topic 'a'").ask(ask) == 7
    assert answers == []


def test_a_start_that_is_stopped_waits_no_longer() -> None:
    waits = Waits("topic 'a'")
    waits.stopping.set()
    with pytest.raises(ConfigurationError, match="topic 'a' was stopped while it was starting; start it again"):
        waits.hold(lambda: False, 10.0, lambda: ConfigurationError("in use"))


def test_a_lock_is_waited_for_until_that_of_a_killed_owner_expires() -> None:
    tries: list[bool] = [False, True]
    waits = Waits("topic 'a'")
    waits.hold(lambda: tries.pop(0), 10.0, lambda: ConfigurationError("in use"))
    with pytest.raises(ConfigurationError, match="in use"):
        waits.hold(lambda: False, -1.0, lambda: ConfigurationError("in use"))


def test_a_task_of_an_earlier_submission_does_not_count_as_serving() -> None:
    records = [JobRecord(0, submission=5), JobRecord(1, submission=6, last_error="no such module")]
    served = [{(0, 3), (1, 6)}, {(0, 5), (1, 6)}]
    waits = Waits("receiver 'a'")
    waits.await_served("worker", records, lambda: served.pop(0), 10.0)
    with pytest.raises(ConfigurationError) as caught:
        waits.await_served("worker", records, lambda: {(0, 5), (1, 4)}, 0.0)
    assert caught.value.message == "receiver 'a': its workers did not start within 0 seconds: worker 1: no such module"


def test_a_start_that_takes_long_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(handle, "TELL_SECONDS", 0.0)
    served: list[set[tuple[int, int]]] = [set(), {(0, 5)}, {(0, 5), (1, 6)}]
    records = [JobRecord(0, submission=5), JobRecord(1, submission=6)]
    Waits("receiver 'a'").await_served("worker", records, lambda: served.pop(0), 10.0)
    assert [record.getMessage().partition(" after")[0] for record in caplog.records] == [
        "receiver 'a': 0 of 2 workers serve",
        "receiver 'a': 1 of 2 workers serve",
    ]


class TestAttendance:
    def test_a_job_is_absent_once_its_lease_has_been_missed_for_long_enough(self) -> None:
        attendance, jobs = Attendance(10.0, 5.0), [(0, 7), (1, 8)]
        assert attendance.absent(jobs, {(0, 7), (1, 8)}, 100.0) == set()
        missing = [attendance.absent(jobs, {(1, 8)}, now) for now in (104.0, 108.0, 110.0, 111.0, 112.0)]
        assert missing == [set(), set(), set(), {0}, set()]

    def test_a_lease_that_comes_back_begins_again(self) -> None:
        attendance, jobs = Attendance(10.0, 5.0), [(0, 7)]
        served: list[set[tuple[int, int]]] = [{(0, 7)}, set(), set(), {(0, 7)}, set(), set()]
        found = [attendance.absent(jobs, here, 100.0 + 4 * step) for step, here in enumerate(served)]
        assert found == [set()] * 6

    def test_one_that_never_held_a_lease_is_not_absent(self) -> None:
        attendance = Attendance(10.0, 5.0)
        assert [attendance.absent([(0, 7)], set(), 100.0 + 4 * step) for step in range(20)] == [set()] * 20

    def test_the_lease_of_an_earlier_submission_does_not_count(self) -> None:
        attendance = Attendance(10.0, 5.0)
        attendance.absent([(0, 7)], {(0, 7)}, 100.0)
        assert [attendance.absent([(0, 9)], {(0, 7)}, 100.0 + 4 * step) for step in range(1, 9)] == [set()] * 8

    def test_time_in_which_the_registry_did_not_answer_does_not_count(self) -> None:
        attendance = Attendance(10.0, 5.0)
        attendance.absent([(0, 7)], {(0, 7)}, 100.0)
        assert attendance.absent([(0, 7)], set(), 160.0) == set()
        assert attendance.absent([(0, 7)], {(0, 7)}, 164.0) == set()


def test_a_job_whose_task_holds_no_lease_any_more_is_cancelled_and_submitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_jobs, "MISSED_LEASES", 0.0)
    session, numbers = Jobs(), iter([7, 8])
    jobs = LongJobs(session, 1, "test", "job {number}", lambda: next(numbers), nothing, 30.0)
    jobs.start()
    eventually(lambda: session.saved == 1)
    jobs.leases_seen({0: Lease(0, 7, 1, "holder", "here:1", "here:2")})
    eventually(lambda: jobs.leases_seen({}) or session.saved == 2)
    jobs.join(SECONDS, session.gate.set)

    assert jobs.records[0].submission == 8


def lacking(number: int, submission: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def work(rows: Iterator[Any]) -> Iterator[Any]:
        import no_such_package_anywhere

        yield from no_such_package_anywhere.rows

    return work


def test_a_package_that_executors_lack_ends_a_start_at_once_with_the_way_out(spark: SparkSession) -> None:
    jobs = LongJobs(spark, 1, "test-lacking", "job {number}", lambda: 1, lacking, 30.0)
    jobs.start()
    try:
        with pytest.raises(ConfigurationError) as refused:
            Waits("receiver 'a'").await_served("worker", jobs.records, set, 600.0)
    finally:
        jobs.join(SECONDS, lambda: None)

    assert re.fullmatch(
        r"receiver 'a': worker 0 cannot start: ModuleNotFoundError: No module named 'no_such_package_anywhere'"
        r"; run pip install 'wallaroo-spark\[worker\]' where Spark's Python is on every node .*",
        refused.value.message,
    )


def test_a_passing_error_is_waited_out() -> None:
    gone = RuntimeError("noise\nCaused by: java.io.IOException: the executor is gone")
    away = RuntimeError("x\nwallaroo_spark.errors.RegistryError: Redis at a:1 cannot be reached\n")
    refused = RuntimeError(
        "x\nwallaroo_spark.errors.ConfigurationError: TLS certificate a.pem: no such file\n\n\tat a.b"
    )

    assert [is_permanent(error) for error in (gone, away, refused)] == [False, False, True]


def test_an_attempt_of_a_task_that_spark_replaces_within_the_job_is_a_death() -> None:
    jobs = LongJobs(Jobs(), 2, "test", "job {number}", lambda: 7, nothing, 30.0)
    first, second = Lease(0, 7, 1, "one", "a:1", "a:2"), Lease(0, 7, 2, "two", "a:3", "a:4")
    rounds: list[dict[int, Lease]] = [{0: first}, {0: first}, {}, {0: second}]
    for leases in (*rounds, {0: second, 1: Lease(1, 6, 1, "other", "b:1", "b:2")}):
        jobs.leases_seen(leases)

    assert [record.died for record in jobs.records] == [1, 0]
    (death,) = jobs.records[0].deaths
    assert "process one has ended, and Spark has run its task again" in death.error


def test_the_first_lease_of_a_new_submission_is_no_death() -> None:
    jobs = LongJobs(Jobs(), 1, "test", "job {number}", lambda: 7, nothing, 30.0)
    jobs.leases_seen({0: Lease(0, 7, 1, "one", "a:1", "a:2")})
    jobs.leases_seen({0: Lease(0, 8, 2, "two", "a:3", "a:4")})

    assert jobs.records[0].died == 0


@dataclass
class JavaContext:
    """As much of Java's context as is asked."""

    stopped: bool

    def sc(self) -> JavaContext:
        return self

    def isStopped(self) -> bool:
        return self.stopped


@pytest.mark.parametrize(
    ("session", "stopped"),
    [
        (SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)), True),
        (SimpleNamespace(sparkContext=SimpleNamespace(_jsc=JavaContext(True))), True),
        (SimpleNamespace(sparkContext=SimpleNamespace(_jsc=JavaContext(False))), False),
        (SimpleNamespace(is_stopped=True), True),
        (SimpleNamespace(is_stopped=False), False),
        (object(), False),
    ],
    ids=["classic, stopped", "classic, stopped by Java", "classic", "Connect, stopped", "Connect", "a stand-in"],
)
def test_a_session_that_was_stopped_is_known(session: Any, stopped: bool) -> None:
    assert long_jobs.session_stopped(session) is stopped
