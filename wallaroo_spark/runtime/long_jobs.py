"""Spark jobs that run for as long as their owner: one task each, submitted again whenever it ends.

A receiver runs its workers in such jobs, and a topic its publishers.
Source: ``docs/decisions/one-job-per-slot.md``; ``docs/architecture.md#the-fleet`` and ``docs/spark.md``.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import RegistryError, one_line
from wallaroo_spark.registry import Lease
from wallaroo_spark.runtime.job_errors import in_short, is_permanent

if TYPE_CHECKING:
    import pandas as pd

log = one_line("wallaroo_spark.runtime.long_jobs")

FIRST_PAUSE = 0.2
"""Seconds before the second submission of a job. A choice: a killed worker should be replaced at once."""
LONGEST_PAUSE = 10.0
"""The pause doubles with every failed submission up to these seconds, so that a job that cannot run costs little."""
ASK_SECONDS = 1.0
"""Pause between two requests to tasks to end. A choice: it bounds how late a task that has just started is asked."""
LOG_PROPERTY = "mdc.wallaroo.job"
"""A property of the jobs that Spark's executors give to Log4j, so that its settings can tell what their tasks log."""
STEADY_SECONDS = 30.0
"""Seconds that a job must run before the next pause is the first one again. A choice: three longest pauses."""
MISSED_LEASES = 2.0
"""A job whose task held a lease and then holds none for this many lease times is cancelled and submitted again.

A choice: a restart of Redis may cost one lease time, and cancelling a job costs the worker its buffer.
"""
TASK_RUN_AGAIN = "the process {holder} has ended, and Spark has run its task again; the executor's log may say why"
"""The error of a death within a job. Spark tells the driver's program of an error when the job itself ends."""

Work = Callable[[Iterator["pd.DataFrame"]], Iterator["pd.DataFrame"]]
"""The function that mapInPandas runs in an executor; its partition has one row, which only makes Spark run the task."""


DEATHS = 5
"""Unwanted ends of a job that are remembered. A choice: enough to see a pattern, and it bounds memory."""
ERROR_LENGTH = 300
"""Characters of a remembered error. A choice: some lines of a terminal."""


@dataclass(frozen=True)
class Death:
    """One end of a job, or of one attempt of its task, that its owner did not request."""

    at: float
    """Time of the end, in seconds since 1970 UTC."""
    submission: int
    """Number of submissions of the job up to that time, from 1."""
    error: str
    """The short text of its error; empty when it ended without one."""


@dataclass
class JobRecord:
    """The state of one job, as its owner reports it."""

    slot: int
    """The number of the slot, partition or gateway that the job serves."""
    running: bool = False
    """Whether Spark runs the job now."""
    submission: int = 0
    """The registry's number for the last submission; 0 before the first."""
    submissions: int = 0
    """Number of submissions of the job, including the first."""
    died: int = 0
    """Number of times that the job, or one attempt of its task, ended without a request of its owner."""
    deaths: tuple[Death, ...] = ()
    """The last of these ends, the oldest first."""
    last_error: str = ""
    """The short text of the last error; empty before the first."""
    permanent: bool = False
    """Whether every further submission will fail too until somebody changes something."""

    def count_death(self, error: str) -> None:
        """Record that the job, or one attempt of its task, ended without a request of its owner."""
        self.died += 1
        death = Death(time.time(), self.submissions, error[:ERROR_LENGTH])
        self.deaths = (*self.deaths, death)[-DEATHS:]


class Attendance:
    """Detects jobs whose task has held no lease for too long. Pure: the clock is an argument.

    A killed process ends its job. A process that hangs does not end its job, but it no longer renews its lease. A
    submission is watched from its first lease on, because its task may wait for a task slot until then.

    ``missed`` is the number of seconds that a task may be without a lease. ``gap`` is the longest time in seconds
    between two calls: after a longer one (while the registry did not answer) the seconds of every task start again.
    """

    def __init__(self, missed: float, gap: float) -> None:
        self._missed = missed
        self._gap = gap
        self._last_served: dict[tuple[int, int], float] = {}
        self._last_call = 0.0

    def absent(self, submitted: Iterable[tuple[int, int]], served: Collection[tuple[int, int]], now: float) -> set[int]:
        """Return the numbers of the jobs whose task has been without a lease for too long; each of them once.

        ``submitted`` are the jobs that run and ``served`` the live leases, both as (number, submission). ``now`` is a
        monotonic clock in seconds.
        """
        restart = now - self._last_call > self._gap
        self._last_call = now
        self._last_served = {
            job: now if restart or job in served else self._last_served[job]
            for job in submitted
            if job in served or job in self._last_served
        }
        absent = {job for job, last in self._last_served.items() if now - last > self._missed}
        for job in absent:
            del self._last_served[job]
        return {number for number, _ in absent}


class LongJobs:
    """``count`` jobs with the numbers from 0, each watched by a thread of this process.

    ``name`` begins the names of their threads and job tags. ``description`` describes a job in Spark's UI;
    ``{number}`` in it is replaced. ``next_submission`` returns the next number for a submission, always a greater one;
    it may raise :class:`RegistryError`. ``work`` makes, from a job's number and its submission, the function that the
    task runs.
    ``lease_seconds`` is how long a lease lasts without being renewed.
    """

    def __init__(
        self,
        spark: Any,
        count: int,
        name: str,
        description: str,
        next_submission: Callable[[], int],
        work: Callable[[int, int], Work],
        lease_seconds: float = 10.0,
    ) -> None:
        self.records = [JobRecord(number) for number in range(count)]
        self.spark_stopped = False
        """Whether a job has ended because its session was stopped; no job is then submitted again."""
        self._spark = spark
        self._name = name
        self._description = description
        self._next_submission = next_submission
        self._work = work
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._attendance = Attendance(MISSED_LEASES * lease_seconds, lease_seconds)
        self._holders: dict[int, tuple[int, str]] = {}
        """The submission and the holder of the last lease of each job."""
        self._looking = threading.Lock()
        self._lease_seconds = lease_seconds

    def start(self) -> None:
        """Submit every job."""
        _started.add(self)
        for record in self.records:
            name = f"{self._name}-{record.slot}"
            thread = threading.Thread(target=self._supervise, args=(record, name), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def leases_seen(self, leases: Mapping[int, Lease]) -> None:
        """Cancel each job whose task no longer renews its lease, so that it is submitted again.

        The owner calls this in every round with the live leases of the registry, by number. Cancelling a job ends the
        process of its task. Attempts of a task that ended, and that Spark has replaced within the job, are counted as
        deaths: on a cluster, Spark runs a task up to ``spark.task.maxFailures`` times (4 by default).
        """
        self._count_attempts(leases)
        served = {(number, lease.submission) for number, lease in leases.items()}
        submitted = {(record.slot, record.submission) for record in self.records if record.running}
        with self._looking:
            absent = self._attendance.absent(submitted, served, time.monotonic())
        for number in sorted(absent):
            if self._stopping.is_set():
                return
            log.warning(
                "%s-%d has held no lease for %g s although its job runs: its process hangs, or does not reach the "
                "registry; the job is cancelled and submitted again",
                self._name,
                number,
                MISSED_LEASES * self._lease_seconds,
            )
            self._interrupt(f"{self._name}-{number}")

    def _count_attempts(self, leases: Mapping[int, Lease]) -> None:
        """Count a death for each lease that passed to another process within one submission."""
        with self._looking:
            for number, lease in leases.items():
                before = self._holders.get(number)
                self._holders[number] = lease.submission, lease.holder
                if before is not None and before[0] == lease.submission and before[1] != lease.holder:
                    name = f"{self._name}-{number}"
                    log.warning("%s: the process %s has ended, and Spark has run its task again", name, before[1])
                    self.records[number].count_death(TASK_RUN_AGAIN.format(holder=before[1]))

    def expect_end(self) -> None:
        """Do not submit jobs again that end from now on."""
        self._stopping.set()

    def join(self, seconds: float, ask: Callable[[], None]) -> None:
        """End the jobs: call ``ask`` every second, which asks their tasks to end, and wait for at most ``seconds``.

        Jobs that still run after that are interrupted.
        """
        self._stopping.set()
        until = time.monotonic() + seconds
        # The first request may not reach a task that is just starting.
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until:
            ask()
            asked = time.monotonic()
            for thread in self._threads:
                thread.join(max(0.0, min(until, asked + ASK_SECONDS) - time.monotonic()))
        for thread in [thread for thread in self._threads if thread.is_alive()]:
            log.warning("the job of %s did not end by itself and is interrupted", thread.name)
            self._interrupt(thread.name)
            thread.join(seconds)

    def slots_taken(self) -> int:
        """The number of task slots that the jobs occupy, or will occupy again when they are resubmitted."""
        return sum(thread.is_alive() for thread in self._threads)

    def _interrupt(self, tag: str) -> None:
        """Cancel the job that has a tag.

        Spark Connect finds the tags of a session. On classic Spark only the context finds a tag that another thread
        has set.
        """
        with contextlib.suppress(Exception):
            self._spark.interruptTag(tag)
        with contextlib.suppress(Exception):
            self._spark.sparkContext.cancelJobsWithTag(tag)

    def _supervise(self, record: JobRecord, tag: str) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            ended = ""
            try:
                self._run(record, tag)
                log.info("%s: its job ended", tag)
            except RegistryError as error:
                record.last_error = ended = error.message
            except Exception as error:
                record.last_error, record.permanent = in_short(error), is_permanent(error)
                ended = record.last_error
                if session_stopped(self._spark):
                    self.spark_stopped = True
                    self._stopping.set()
                # The start of the owner ends with a first error that does not pass, and raises it.
                if not self._stopping.is_set() and not (record.permanent and record.submissions == 1):
                    log.warning("%s: its job failed and is submitted again: %s", tag, record.last_error)
            if record.running and not self._stopping.is_set():
                record.count_death(ended)
            record.running = False
            pause = FIRST_PAUSE if time.monotonic() - began > STEADY_SECONDS else min(LONGEST_PAUSE, pause * 2)
            self._stopping.wait(pause)

    def _run(self, record: JobRecord, tag: str) -> None:
        submission = record.submission = self._next_submission()
        record.submissions += 1
        self._spark.addTag(tag)
        record.running = True
        with contextlib.suppress(Exception):
            self._spark.sparkContext.addJobTag(tag)
            self._spark.sparkContext.setJobDescription(f"wallaroo {self._description.format(number=record.slot)}")
            self._spark.sparkContext.setLocalProperty(LOG_PROPERTY, "true")
        one_row = self._spark.range(record.slot, record.slot + 1, 1, 1)
        work = self._work(record.slot, submission)
        one_row.mapInPandas(work, "slot int").write.format("noop").mode("overwrite").save()


_started: weakref.WeakSet[LongJobs] = weakref.WeakSet()


def session_stopped(spark: Any) -> bool:
    """Whether a session was stopped, so that no job can run in it any more."""
    try:
        java = spark.sparkContext._jsc
        return java is None or bool(java.sc().isStopped())
    except Exception:
        # Spark Connect has no context; nor have stand-ins of tests, and a Java that has died does not answer.
        return bool(getattr(spark, "is_stopped", False))


def task_slots_taken() -> int:
    """The number of task slots that all long jobs of this process occupy."""
    return sum(jobs.slots_taken() for jobs in list(_started))
