"""What Spark says in the driver about a query: its state for the status, and its reports for the times of batches.

Source: ``docs/status.md`` and ``docs/monitoring.md#metrics``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.observe.receiver import QueryStatus
from wallaroo_spark.runtime.job_errors import in_short

LOOK_SECONDS = 1.0
"""How often Spark is asked about the query. A choice: each look takes some calls to Java."""
_CHECKPOINT_SIGNS = ("streaming.checkpointing.", "HDFSMetadataLog", "CheckpointFileManager", "errors.CheckpointError")
"""Parts of a stack trace, or of an error's text, that show that the checkpoint could not be read or written."""


class QueryFacts:
    """Follows the query of a receiver. Any thread may call it.

    It begins with no query. ``lag`` is Spark's last word on the rows and bytes behind the last planned offset.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = QueryStatus("none")
        self._query: Any = None
        self._looked_at = 0.0
        self.lag: tuple[int | None, int | None] = (None, None)

    def starting(self, checkpoint: str, trigger: str) -> None:
        """A query is about to start."""
        with self._lock:
            self._query = None
            self._status = QueryStatus("starting", checkpoint=checkpoint, trigger=trigger)
            self.lag = (None, None)

    def started(self, query: Any) -> None:
        """The query has started."""
        with self._lock:
            self._query, self._looked_at = query, 0.0
            self._status = dataclasses.replace(
                self._status, state="running", id=str(query.id), run_id=str(query.runId), name=query.name or ""
            )

    def ended(self) -> None:
        """The query has ended, or could not start. Its error is kept."""
        with self._lock:
            if self._query is not None:
                self._status = _ended(self._status, self._query)
            elif self._status.state == "starting":
                self._status = dataclasses.replace(self._status, state="none")
            self._query = None

    def look(self, committed: int | None, planned: int | None = None, watcher_error: str = "") -> QueryStatus:
        """The present facts; Spark is asked at most once in :data:`LOOK_SECONDS`.

        ``committed`` and ``planned`` are the newest batches of the checkpoint's logs, None without one, and
        ``watcher_error`` is why they cannot be read now.
        """
        with self._lock:
            now = time.monotonic()
            if self._query is not None and now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                self._ask(self._query)
            self._follow(committed, planned, watcher_error)
            return self._status

    def _ask(self, query: Any) -> None:
        if not query.isActive:
            self._status = _ended(self._status, query)
            self._query = None
            return
        # A query that ends meanwhile, or a lost connection to Spark, is seen by the next look.
        with contextlib.suppress(Exception):
            status, progress = _of_spark(query)
            self._status = dataclasses.replace(self._status, message=str(status.get("message", "")))
            if progress is not None:
                self._report(progress)

    def _report(self, progress: dict[str, Any]) -> None:
        self._status = dataclasses.replace(
            self._status,
            reported_batch=int(progress["batchId"]) if progress.get("batchId") is not None else None,
            input_rows=_rows(progress),
            input_rate=float(progress.get("inputRowsPerSecond") or 0.0),
            processed_rate=float(progress.get("processedRowsPerSecond") or 0.0),
            durations=_durations(progress),
        )
        lags = [lag for source in progress.get("sources", ()) if (lag := _lag(source)) is not None]
        if lags:
            self.lag = max(lag["rows"] for lag in lags), max(lag["bytes"] for lag in lags)

    def _follow(self, committed: int | None, planned: int | None, watcher_error: str) -> None:
        """Record the newest commit, and the running batch according to Spark's own text."""
        status, now = self._status, time.time()
        if committed != status.committed_batch:
            seen = now if status.committed_batch is not None or status.batch is not None else None
            status = dataclasses.replace(status, committed_batch=committed, committed_at=seen)
        batch, phase = None, ""
        if status.state == "running":
            next_batch = (committed if committed is not None else -1) + 1
            if status.message.startswith("Processing") or (planned is not None and planned >= next_batch):
                batch, phase = next_batch, "writing"
            elif status.message:
                phase = "idle"
        if (batch, phase) != (status.batch, status.phase):
            status = dataclasses.replace(status, batch=batch, phase=phase, since=now if phase else None)
        self._status = dataclasses.replace(status, watcher_error=watcher_error)


def _of_spark(query: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Spark's status of a query, and its last progress report.

    On classic Spark both are asked for as JSON, because PySpark would read every value of a report from Java.
    """
    java_query = getattr(query, "_jsq", None)
    if java_query is not None:
        report = java_query.lastProgress()
        return json.loads(java_query.status().json()), json.loads(report.json()) if report is not None else None
    progress = query.lastProgress
    return dict(query.status), json.loads(progress.json) if progress is not None else None


def _lag(source: dict[str, Any]) -> dict[str, int] | None:
    """The lag that a source of a receiver has reported in its latest offset."""
    latest = source.get("latestOffset")
    if isinstance(latest, str):
        with contextlib.suppress(ValueError):
            latest = json.loads(latest)
    lag = latest.get("lag") if isinstance(latest, dict) else None
    return lag if isinstance(lag, dict) and {"rows", "bytes"} <= lag.keys() else None


def _ended(status: QueryStatus, query: Any) -> QueryStatus:
    """The status of a query that has ended, with its error."""
    try:
        error = query.exception()
    except Exception as failed:
        error = failed
    now = time.time()
    idle = dataclasses.replace(status, batch=None, phase="", since=None, message="")
    if error is None:
        return dataclasses.replace(idle, state="stopped")
    kind = "checkpoint" if any(sign in _trace(query, error) for sign in _CHECKPOINT_SIGNS) else ""
    return dataclasses.replace(idle, state="failed", error=in_short(error), error_kind=kind, error_at=now)


def _trace(query: Any, error: Exception) -> str:
    """The text of an error with the stack traces that can be read."""
    texts = [str(error), str(getattr(error, "stackTrace", "") or ""), str(getattr(error, "_stackTrace", "") or "")]
    with contextlib.suppress(Exception):
        cause = query._jsq.exception().get()
        while cause is not None:
            texts.append(str(cause.toString()))
            texts += [str(frame.getClassName()) for frame in cause.getStackTrace()]
            cause = cause.getCause()
    return "\n".join(texts)


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


@dataclass
class PhaseTimes:
    """The histogram of one phase."""

    buckets: Counter[float] = field(default_factory=Counter)
    """Batches by the upper bound of their bucket; infinity for the last one."""
    seconds: float = 0.0
    """Sum of the seconds of all batches."""


class BatchTimes:
    """Counts each batch once, however often its report is seen."""

    def __init__(self) -> None:
        self.batches = 0
        self.rows = 0
        self.phases: dict[str, PhaseTimes] = {name: PhaseTimes() for name in PHASES.values()}
        self._counted: dict[tuple[str, int], None] = {}

    def add(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Add reports of Spark. It also reports while no batch runs: such a one has no ``addBatch`` and is ignored."""
        for report in reports:
            durations = _durations(report)
            if self.known(report) or "addBatch" not in durations:
                continue
            self._counted[_batch_of(report)] = None
            if len(self._counted) > KEPT_BATCHES:
                del self._counted[next(iter(self._counted))]
            self.batches += 1
            self.rows += _rows(report)
            for step, milliseconds in durations.items():
                if step in PHASES:
                    times, seconds = self.phases[PHASES[step]], milliseconds / 1000
                    times.buckets[next((bound for bound in PHASE_SECONDS if seconds <= bound), math.inf)] += 1
                    times.seconds += seconds

    def known(self, report: Mapping[str, Any]) -> bool:
        """Whether the batch is counted already."""
        return _batch_of(report) in self._counted


def read_batches(query: Any, times: BatchTimes) -> None:
    """Add the batches that ``times`` has not counted yet, if Spark still has their reports."""
    reports = map(json.loads, _newest_first(query))
    new = [*itertools.takewhile(lambda report: not times.known(report), reports)]
    times.add(reversed(new))


def _newest_first(query: Any) -> Iterator[str]:
    java_query = getattr(query, "_jsq", None)
    if java_query is None:
        yield from (progress.json for progress in reversed(query.recentProgress))
        return
    # One call to Java for each report that is new; PySpark would read every value of all of them.
    reports = java_query.recentProgress()
    for index in reversed(range(len(reports))):
        yield reports[index].json()


def _batch_of(report: Mapping[str, Any]) -> tuple[str, int]:
    """The run of the query, and the number of the batch."""
    return str(report["runId"]), int(report["batchId"])


def _rows(report: Mapping[str, Any]) -> int:
    return int(report.get("numInputRows") or 0)


def _durations(report: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): int(value) for name, value in (report.get("durationMs") or {}).items()}
