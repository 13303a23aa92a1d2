"""Spark jobs that run for as long as their owner does: one a task, each submitted again whenever it ends.

Receivers run their workers this way, and topics their publishers. Source: ``design.md``, The picture (Fleet) and What
Spark does that shapes the code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from wallaroo_spark.errors import ConfigurationError, RegistryError, WallarooError, one_line

if TYPE_CHECKING:
    import pandas as pd

log = one_line(logging.getLogger("wallaroo_spark.longjobs"))

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
ASK_SECONDS = 1.0
STEADY_SECONDS = 30.0
"""A job that ran for so long was well, so the next pause is short again."""
REGISTRY_SECONDS = 60.0
"""How long a registry that was there may be away while jobs start."""
EXECUTORS_SECONDS = 60.0
"""How long a cluster's executors may take to register before its task slots are counted."""
HEARTBEAT_SECONDS = 1.0
"""Spark may take a silent Python task for idle, so an empty frame leaves this often."""
END_SECONDS = 10.0
MISSED_LEASES = 2.0
"""A job whose task has served, and then has held no lease for the time of so many, is cancelled and submitted again."""
_ERROR_CHARACTERS = 500
_OURS = re.compile(r"^wallaroo_spark\.errors\.\w+: ")
_LACKING = re.compile(r"(ModuleNotFound|Import)Error: ")
"""What Python says of a package that it has not."""
_REFUSED = re.compile(re.escape(f"{ConfigurationError.__module__}.{ConfigurationError.__qualname__}: "))
"""How Python shows what this package raises of its options; Spark hands it on as text."""
_ASK_AGAIN_SECONDS = 0.2
_LOOK_AGAIN_SECONDS = 0.05

T = TypeVar("T")
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


class Service(Protocol):
    """What a task runs on an event loop of its own."""

    async def run(self) -> None:
        """Serve until :meth:`stop_from_outside`, or until there is nothing more to do."""

    def stop_from_outside(self, reason: str) -> None:
        """Have it end in good order; called from another thread, perhaps before or after it runs."""


class ServiceThread:
    """A :class:`Service` on an event loop in a thread of its own; as a context manager it runs on entry."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.stop_from_outside("its task was ended")
        self._done.wait(END_SECONDS)

    def alive(self, seconds: float) -> bool:
        """Wait so long for the service to end; whether it goes on. Raises what it ended with."""
        self._done.wait(seconds)
        if self._error is not None:
            raise self._error
        return not self._done.is_set()

    def _run(self) -> None:
        try:
            asyncio.run(self._service.run())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


def serve(service: ServiceThread, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Run a service in mapInPandas, yielding empty frames as heartbeats; ends when it does, and raises what it raises.

    ``rows`` are the task's own, of which it has one that only places it. What this host lacks is said with its name.
    """
    import pandas
    import pyarrow

    for _ in rows:
        pass
    heartbeat = pandas.DataFrame({"slot": pandas.Series([], dtype=pandas.ArrowDtype(pyarrow.int32()))})
    try:
        with service as running:
            while running.alive(HEARTBEAT_SECONDS):
                yield heartbeat
    except ConfigurationError as error:
        raise ConfigurationError(f"on {socket.gethostname()}: {error.message}", **error.fields) from None


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


class Patience:
    """What the owner of long jobs waits for as it starts them, until somebody sets ``stopping``.

    ``owner`` names it. Every wait raises :class:`ConfigurationError` once ``stopping`` is set.
    """

    def __init__(self, owner: str) -> None:
        self.stopping = threading.Event()
        self._owner = owner

    def ask(self, question: Callable[[], T]) -> T:
        """Ask the registry; one that was there and is away now must not end a start that can wait for it."""
        until = time.monotonic() + REGISTRY_SECONDS
        while True:
            try:
                return question()
            except RegistryError as error:
                if time.monotonic() > until:
                    raise
                log.warning("%s waits for its registry: %s", self._owner, error)
            self._pause(_ASK_AGAIN_SECONDS)

    def hold(self, take: Callable[[], bool], lease_seconds: float, refusal: Callable[[], WallarooError]) -> None:
        """Take a lock. An owner that was killed holds its locks until they run out, so that is waited for."""
        until = time.monotonic() + lease_seconds + 1
        while not self.ask(take):
            if time.monotonic() > until:
                raise refusal()
            self._pause(_ASK_AGAIN_SECONDS)

    def await_served(
        self, what: str, records: Iterable[JobRecord], served: Callable[[], set[tuple[int, int]]], seconds: float
    ) -> None:
        """Wait until each job's submission is among the (number, submission) that the registry says are served."""
        until = time.monotonic() + seconds
        while True:
            # Leases of jobs that were killed last a while longer: only these submissions count.
            now = self.ask(served)
            missing = [record for record in records if (record.number, record.submission) not in now]
            if not missing:
                return
            for record in missing:
                if record.permanent:
                    raise ConfigurationError(
                        f"{self._owner}: {what} {record.number} cannot start: {record.last_error}",
                        number=record.number,
                    )
            if time.monotonic() > until:
                why = "; ".join(f"{what} {record.number}: {record.last_error or 'no error'}" for record in missing)
                raise ConfigurationError(
                    f"{self._owner}: its {what}s did not come up within {seconds:g} seconds: {why}"
                )
            self._pause(_LOOK_AGAIN_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise ConfigurationError(f"{self._owner} was stopped while it was starting; start it again")


def in_short(error: Exception) -> str:
    """What happened, out of a Spark error's many lines about where."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = [line for line in lines if _LACKING.match(line)]
    ours = [line for line in lines if line.startswith("wallaroo_spark.")]
    causes = [line.removeprefix("Caused by: ") for line in lines if re.search(r"(Exception|Error): \S", line)]
    text = (lacking[-1:] or ours[-1:] or causes[:1] or lines[:1] or [repr(error)])[0].lstrip(": ")[:_ERROR_CHARACTERS]
    if lacking:
        text += (
            "; install pip install 'wallaroo-spark[worker]' where Spark's Python is on every node (PYSPARK_PYTHON), "
            "or ship it with --archives"
        )
    return text


def is_permanent(error: Exception) -> bool:
    """Whether a job failed by what stays as it is until somebody mends it: an option, a file, a package, a port."""
    return any(_LACKING.match(line.strip()) or _REFUSED.match(line.strip()) for line in str(error).splitlines())


def classic_context(spark: Any) -> Any:
    """The SparkContext, None on Spark Connect, which has none."""
    try:
        return spark.sparkContext
    except Exception:
        return None


def on_one_machine(master: str) -> bool:
    """Whether a master URL is local mode, or a cluster on the loopback interface."""
    return master.startswith("local") or urlsplit(master).hostname in ("127.0.0.1", "localhost", "::1")


def registry_reach(registry: str, master: str) -> None:
    """An embedded Redis serves one machine alone. Raises :class:`ConfigurationError` on a cluster of several."""
    if registry == "embedded" and not on_one_machine(master):
        raise ConfigurationError(
            f"registry=embedded is for one machine, and {master} may have several; "
            "give the URL of a Redis that all of them reach: registry=redis://host:6379"
        )


def task_slots(spark: Any, jobs: int, seconds: float = EXECUTORS_SECONDS, *, what: str = "workers") -> None:
    """Each long job takes a task slot for good, and the query needs one more. Raises :class:`ConfigurationError`.

    Counts what this process runs already, and waits for a cluster's executors to register. Where Spark cannot say
    (Spark Connect, dynamic allocation) nothing is checked, and the log says so.
    """
    context = classic_context(spark)
    running = sum(others.slots_taken() for others in list(_started))
    needed = jobs + running + 1
    if context is None or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        log.info("the cluster's task slots cannot be counted; %d %s need at least %d", jobs, what, needed)
        return
    until = time.monotonic() + seconds
    while (slots := count_task_slots(context)) < needed:
        if context.master.startswith("local") or time.monotonic() > until:
            beside = f", {running} workers and publishers that run already" if running else ""
            raise ConfigurationError(
                f"{jobs} {what}{beside} and the query need {needed} task slots, and {context.master} has {slots}: no "
                f"batch would ever run; use fewer {what}, or {_more_slots(context.master, needed)}",
                slots=slots,
                workers=jobs,
            )
        time.sleep(0.5)


def _more_slots(master: str, needed: int) -> str:
    return f"local[{needed}] or more" if master.startswith("local") else "more executor cores (spark.cores.max)"


def count_task_slots(context: Any) -> int:
    """The tasks that can run at once now."""
    local = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", context.master)
    if local:
        return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
    if context.master.startswith("local-cluster"):
        executors, cores = re.findall(r"\d+", context.master)[:2]
        return int(executors) * int(cores)
    per_task = int(context.getConf().get("spark.task.cpus", "1"))
    total: int = sum(int(profile.totalCores()) for profile in _executors(context))
    return total // per_task


def _executors(context: Any) -> list[Any]:
    """The executors' descriptions, the driver's left out."""
    store = context._jsc.sc().statusStore().executorList(True)
    found = [store.apply(index) for index in range(store.size())]
    return [executor for executor in found if executor.id() != "driver"]
