"""Counters that never go backwards, although workers die and start again from zero, and the seconds of batches. Pure.

Source: ``docs/monitoring.md#counters``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from wallaroo_spark.observe.receiver import ReceiverStatus, SlotStatus

KEPT_WORKERS = 4
"""Maximum number of a slot's workers whose counts are kept separately.

A choice: answers of a former worker arrive at most a few seconds late, and a slot does not change its worker so often.
"""

ROWS_IN, ROWS_OUT = "rows-in", "rows-out"
"""The names of the counters of received and of committed rows."""
Identity = tuple[int, str, int | None]
"""One worker: the generation of its lease, its unique name and its process id."""


class SlotCounts:
    """The counters of one slot: the sum over all workers that have served it."""

    def __init__(self) -> None:
        self._former: Counter[str] = Counter()
        self._workers: dict[Identity, Counter[str]] = {}
        self._jobs: Counter[str] = Counter()
        self._last_jobs: dict[str, int] = {}

    def add(self, slot: SlotStatus) -> None:
        """Add one snapshot. An answer is ignored when a newer one of the same worker was added before."""
        if slot.answers or slot.counts:
            counts = {**slot.counts, ROWS_IN: slot.rows_in, ROWS_OUT: slot.rows_out}
            self._add_worker((slot.generation, slot.holder, slot.pid), counts)
        for name, value in (("deaths", slot.died), ("submissions", slot.submissions or 0)):
            # Another start of the fleet counts from zero.
            last = self._last_jobs.get(name, 0)
            self._jobs[name] += value - last if value >= last else value
            self._last_jobs[name] = value

    def _add_worker(self, identity: Identity, counts: Mapping[str, int]) -> None:
        known = self._workers.setdefault(identity, Counter())
        for name, value in counts.items():
            known[name] = max(known[name], value)
        if len(self._workers) > KEPT_WORKERS:
            self._former.update(self._workers.pop(next(iter(self._workers))))

    def totals(self) -> Counter[str]:
        """The counters, by the names of a worker's counts; those of its job, ROWS_IN and ROWS_OUT beside them."""
        total = Counter(self._former)
        for counts in self._workers.values():
            total.update(counts)
        total.update(self._jobs)
        return total


class Aggregate:
    """The counters of a receiver by slot, from its snapshots. Slots that do not answer keep their last values."""

    def __init__(self) -> None:
        self._slots: dict[int, SlotCounts] = {}
        self._time = 0.0

    def add(self, status: ReceiverStatus) -> None:
        """Add a snapshot. It is ignored when it is older than the last one."""
        if status.time < self._time:
            return
        self._time = status.time
        for slot in status.slots:
            self._slots.setdefault(slot.slot, SlotCounts()).add(slot)

    def counts(self) -> dict[int, Counter[str]]:
        """The counters of each slot that was ever seen."""
        return {number: slot.totals() for number, slot in sorted(self._slots.items())}


PHASE_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the buckets, in seconds.

A choice: ``docs/performance.md`` measures batches of 0.1 to 0.5 s; sinks that take minutes fit, too.
"""
PHASES = {
    "latestOffset": "plan",
    "queryPlanning": "compile",
    "addBatch": "run",
    "walCommit": "write_offsets",
    "commitOffsets": "write_commit",
    "triggerExecution": "all",
}
"""The name of each phase by Spark's name in ``durationMs``."""
KEPT_BATCHES = 512
"""Number of counted batches that are remembered. A choice: Spark keeps 100 reports by default."""


@dataclass(frozen=True)
class BatchReport:
    """One progress report of Spark."""

    run: str
    """Spark's id of the run of the query."""
    batch: int
    """Number of the batch."""
    rows: int
    """Rows that the batch has read."""
    durations: Mapping[str, int]
    """Milliseconds of each step, by Spark's names."""


@dataclass
class PhaseTimes:
    """The histogram of one phase."""

    buckets: Counter[float]
    """Batches by the upper bound of their bucket; infinity for the last one."""
    seconds: float = 0.0
    """Sum of the seconds of all batches."""


class BatchTimes:
    """Counts each batch once, however often its report is seen."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.phases: dict[str, PhaseTimes] = {name: PhaseTimes(Counter()) for name in PHASES.values()}
        self._order: deque[tuple[str, int]] = deque()
        self._counted: set[tuple[str, int]] = set()

    def add(self, reports: Iterable[BatchReport]) -> None:
        """Add reports. Spark also reports while no batch runs; such a report has no ``addBatch`` and is ignored."""
        for report in reports:
            key = (report.run, report.batch)
            if key in self._counted or "addBatch" not in report.durations:
                continue
            self._remember(key)
            self.batches += 1
            self.rows += report.rows
            for step, milliseconds in report.durations.items():
                if (phase := PHASES.get(step)) is not None:
                    self._count(self.phases[phase], milliseconds / 1000)

    def known(self, run: str, batch: int) -> bool:
        """Whether a batch is counted already."""
        return (run, batch) in self._counted

    def _remember(self, key: tuple[str, int]) -> None:
        self._order.append(key)
        self._counted.add(key)
        if len(self._order) > KEPT_BATCHES:
            self._counted.discard(self._order.popleft())

    @staticmethod
    def _count(times: PhaseTimes, seconds: float) -> None:
        bound = next((bound for bound in PHASE_SECONDS if seconds <= bound), float("inf"))
        times.buckets[bound] += 1
        times.seconds += seconds
