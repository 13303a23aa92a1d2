"""Spark jobs that run for as long as their owner does: one a task, each submitted again whenever it ends.

Receivers run their workers this way, and topics their publishers.
Source: ``docs/decisions/one-job-per-slot.md``; ``docs/architecture.md#the-fleet`` and ``docs/spark.md``.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from wallaroo_spark.errors import RegistryError, one_line
from wallaroo_spark.slots.job_errors import in_short, is_permanent

if TYPE_CHECKING:
    import pandas as pd

log = one_line(logging.getLogger("wallaroo_spark.slots.long_jobs"))

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
ASK_SECONDS = 1.0
STEADY_SECONDS = 30.0
"""A job that ran for so long was well, so the next pause is short again."""
MISSED_LEASES = 2.0
"""A job whose task has served, and then has held no lease for the time of so many, is cancelled and submitted again."""
_OURS = re.compile(r"^wallaroo_spark\.errors\.\w+: ")

Work = Callable[[Iterator["pd.DataFrame"]], Iterator["pd.DataFrame"]]
"""What mapInPandas runs in an executor, on one partition of one row that only places the task."""


@dataclass
class JobRecord:
    """How one job has fared. ``submissions`` counts them all, the first included; ``submission`` is the number that
    the last one was given.
    """

    number: int
    submissions: int = 0
    submission: int = 0
    running: bool = False
    last_error: str = ""
    permanent: bool = False
    """Whether the last error is one that another submission will not mend."""


class Held(Protocol):
    """A lease, of which the submission is looked at; see ``wallaroo_spark.registry.Lease``."""

    @property
    def submission(self) -> int:
        """Whose lease it is."""


class Attendance:
    """Which jobs have held no lease for too long; pure, with the clock as an argument.

    A process that is killed ends its job, and one that stands still does not: only the lease, which it no longer
    renews, tells. A submission counts once it has held a lease, since one that has not may wait for a place in the
    cluster. ``missed`` is in seconds; ``gap`` is how far apart two looks may be: behind a longer one, as while the
    registry was away, everybody is given the whole time again.
    """

    def __init__(self, missed: float, gap: float) -> None:
        self._missed = missed
        self._gap = gap
        self._last: dict[tuple[int, int], float] = {}
        self._looked = 0.0

    def absent(self, submitted: Iterable[tuple[int, int]], served: Collection[tuple[int, int]], now: float) -> set[int]:
        """The numbers of those that are absent; each of them is named once. Both are of (number, submission)."""
        late = now - self._looked > self._gap
        self._looked = now
        self._last = {
            one: now if late or one in served else self._last[one]
            for one in submitted
            if one in served or one in self._last
        }
        absent = {one for one, last in self._last.items() if now - last > self._missed}
        for one in absent:
            del self._last[one]
        return {number for number, _ in absent}


class LongJobs:
    """So many jobs, each watched by a thread of this process.

    ``name`` is what their threads and tags are called after, ``what`` what one of them is, for Spark's UI and the log.
    ``next_submission`` numbers a submission, upwards for ever; it may raise :class:`RegistryError`. ``work`` makes,
    from a job's number and its submission, what the task runs. ``lease_seconds`` is for how long a lease lasts.
    """

    def __init__(
        self,
        spark: Any,
        count: int,
        name: str,
        what: str,
        next_submission: Callable[[], int],
        work: Callable[[int, int], Work],
        lease_seconds: float = 10.0,
    ) -> None:
        self.records = [JobRecord(number) for number in range(count)]
        self._spark = spark
        self._name = name
        self._what = what
        self._next_submission = next_submission
        self._work = work
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._attendance = Attendance(MISSED_LEASES * lease_seconds, lease_seconds)
        self._looking = threading.Lock()
        self._lease_seconds = lease_seconds

    def start(self) -> None:
        """Submit every job."""
        _started.add(self)
        for record in self.records:
            name = f"{self._name}-{record.number}"
            thread = threading.Thread(target=self._supervise, args=(record, name), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def leases_seen(self, leases: Mapping[int, Held]) -> None:
        """What the registry says, every round of the owner: a job whose task stands still is cancelled, which ends its
        process, and submitted again.
        """
        served = {(number, lease.submission) for number, lease in leases.items()}
        submitted = {(record.number, record.submission) for record in self.records if record.running}
        with self._looking:
            absent = self._attendance.absent(submitted, served, time.monotonic())
        for number in sorted(absent):
            if self._stopping.is_set():
                return
            log.warning(
                "%s-%d has held no lease for %g s though its job runs: its process stands still, or does not reach the "
                "registry; its job is cancelled and submitted again",
                self._name,
                number,
                MISSED_LEASES * self._lease_seconds,
            )
            self._interrupt(f"{self._name}-{number}")

    def expect_end(self) -> None:
        """Jobs that end from now on are not submitted again."""
        self._stopping.set()

    def join(self, seconds: float, ask: Callable[[], None]) -> None:
        """Have the jobs end, asking their tasks every now and then; those that do not end are interrupted."""
        self._stopping.set()
        until = time.monotonic() + seconds
        # A task may only just be coming up, so that asking once would not reach it.
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
        """The task slots that the jobs hold, or will hold again in a moment."""
        return sum(thread.is_alive() for thread in self._threads)

    def _interrupt(self, tag: str) -> None:
        """End a job from outside. Spark Connect knows a session's tags; without it, a tag that another thread set is
        known to the context alone.
        """
        with contextlib.suppress(Exception):
            self._spark.interruptTag(tag)
        with contextlib.suppress(Exception):
            self._spark.sparkContext.cancelJobsWithTag(tag)

    def _supervise(self, record: JobRecord, tag: str) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._run(record, tag)
                log.info("%s: its job ended", tag)
            except RegistryError as error:
                record.last_error = error.message
            except Exception as error:
                record.last_error, record.permanent = _OURS.sub("", in_short(error)), is_permanent(error)
                if not self._stopping.is_set():
                    log.warning("%s: its job failed and is submitted again: %s", tag, record.last_error)
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
            self._spark.sparkContext.setJobDescription(f"wallaroo {self._what.format(number=record.number)}")
        one_row = self._spark.range(record.number, record.number + 1, 1, 1)
        work = self._work(record.number, submission)
        one_row.mapInPandas(work, "slot int").write.format("noop").mode("overwrite").save()


_started: weakref.WeakSet[LongJobs] = weakref.WeakSet()


def task_slots_taken() -> int:
    """The task slots that all long jobs of this process hold."""
    return sum(jobs.slots_taken() for jobs in list(_started))
