"""What the page of an application shows of the past: figures over time, batches and events, all bounded. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from wallaroo_spark.status.application.model import ApplicationStatus
from wallaroo_spark.web.report.run_record import BATCHES, EVENTS, RECENT, Batch, RunEvent

WINDOW_SECONDS = 5.0
"""The window of a rate, as that of a receiver's."""
PASSING = frozenset(["query-starting", "application-idle", "application-flowing"])
"""Causes that change with every batch or at every start, and so are no events."""


@dataclass(frozen=True)
class SnapshotTotals:
    """The counters of one snapshot, of which rates are made."""

    time: float
    """Time of the snapshot."""
    events: float
    """Events that gateways have written; it falls when a gateway begins anew."""
    records: int
    """Records of all streams."""
    outputs: int
    """Recorded outputs of all stages."""


@dataclass(frozen=True)
class Figures:
    """The figures of an application at one time."""

    time: float
    """Time of the snapshot."""
    events: float | None
    """Events a second that gateways have written; None when there was no earlier snapshot."""
    records: float | None
    """Records a second; None as above."""
    outputs: float | None
    """Outputs of stages a second; None as above."""
    unread: int
    """Events in the inbox that no batch has read."""


class ApplicationRecord:
    """The record of one run."""

    def __init__(self) -> None:
        self.last: ApplicationStatus | None = None
        """The newest snapshot."""
        self.recent: deque[Figures] = deque(maxlen=RECENT)
        """Figures, the oldest first."""
        self.batches: deque[Batch] = deque(maxlen=BATCHES)
        """Batches, the oldest first."""
        self.happened: deque[RunEvent] = deque(maxlen=EVENTS)
        """Events, the newest first."""
        self._totals: deque[SnapshotTotals] = deque(maxlen=RECENT)
        self._events = 0

    def add(self, status: ApplicationStatus) -> None:
        """Add a snapshot; one that is not newer than the last is ignored."""
        before = self.last
        if before is not None and status.time <= before.time:
            return
        self._note_changes(before, status)
        self.last = status
        query = status.query
        batch, newest = query.reported_batch, self.batches[-1].batch if self.batches else None
        if batch is not None and batch != newest and "addBatch" in query.durations:
            self.batches.append(Batch(status.time, batch, query.input_rows, query.durations))
        totals = _totals(status)
        while len(self._totals) > 1 and status.time - self._totals[1].time >= WINDOW_SECONDS:
            self._totals.popleft()
        self.recent.append(_figures(status, self._totals[0] if self._totals else None, totals))
        self._totals.append(totals)

    def count(self, status: ApplicationStatus) -> None:
        """Nothing: a run of an application has no report."""

    def _note_changes(self, before: ApplicationStatus | None, after: ApplicationStatus) -> None:
        name = after.application
        if (before.cause.code if before else "") != after.cause.code and after.cause.code not in PASSING:
            self._note(after.time, "change", name, after.cause.sentence, not after.cause.healthy)
        for error in after.errors:
            if before is None or error not in before.errors:
                self._note(after.time, "error", name, error, True)
        starts = {one.gateway: one.submissions for one in before.gateways} if before else {}
        for one in after.gateways:
            if one.submissions > starts.get(one.gateway, one.submissions):
                text = one.last_error or "its Spark job has ended"
                self._note(after.time, "death", one.gateway, f"it is started again: {text}", True)
        if before is not None and after.query_starts > before.query_starts > 0:
            self._note(after.time, "change", "query", "the query was started again", True)
        if before is not None and before.schema != after.schema:
            self._note(after.time, "change", name, f"version {after.schema} of the schema is applied", False)

    def _note(self, time: float, kind: str, where: str, text: str, bad: bool) -> None:
        self.happened.appendleft(RunEvent(self._events, time, kind, where, text, bad))
        self._events += 1


def _totals(status: ApplicationStatus) -> SnapshotTotals:
    return SnapshotTotals(
        status.time,
        sum(one.counts.get("inbox-events", 0) for one in status.gateways),
        sum(one.records for one in status.partitions),
        sum(stage.done for one in status.pipelines for stage in one.stages),
    )


def _figures(status: ApplicationStatus, before: SnapshotTotals | None, now: SnapshotTotals) -> Figures:
    unread = sum(one.unread_events for one in status.gateways)
    if before is None:
        return Figures(status.time, None, None, None, unread)
    seconds = now.time - before.time

    def rate(earlier: float, later: float) -> float:
        return max(0.0, later - earlier) / seconds

    return Figures(
        status.time,
        rate(before.events, now.events),
        rate(before.records, now.records),
        rate(before.outputs, now.outputs),
        unread,
    )
