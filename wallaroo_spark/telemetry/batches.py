"""The seconds that each phase of a batch has taken, from Spark's progress reports, as histograms. Pure.

Source: ``docs/monitoring.md#metrics``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
