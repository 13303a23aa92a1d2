"""The record of a receiver's run: figures over time, batches and events, all bounded. Pure.

The status page shows its end, the run report all of it. Source: ``docs/status-page.md#run-report``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from wallaroo_spark.status import History, Rates, ReceiverStatus, SlotStatus, rates
from wallaroo_spark.web.report.thinning import ThinningSeries

RECENT = 300
"""Points that the status page shows: five minutes at one a second."""
WHOLE = 1200
"""Points that a whole run keeps. A choice: a report's picture is some 1,000 pixels wide."""
BATCHES = 60
"""Batches that the status page shows."""
EVENTS = 200
"""Number of the newest events that are kept. The report says how many there were."""
FIRST_EVENTS = 100
"""Events from the beginning that are kept beside the newest, because the first failure often explains the others."""
SNAPSHOTS = 12
"""Whole snapshots that are kept, for rates over some seconds."""
ACK_AGE = "ack-age:"
"""Prefix of the names of a worker's counts of acknowledged rows; the upper bound in seconds follows, or ``+Inf``."""
CALM_SECONDS = 10.0
"""Seconds without trouble after which a trouble counts as ended. A choice: longer than a quick batch of a slow
query."""
PASSING = frozenset({"worker-starting", "worker-stopping", "slot-vacant", "query-not-started", "query-starting"})
"""Causes that occur at every start and stop, so that they need attention only when they last."""
SAME_SECONDS = 2.0
"""Refusals of one peer whose times differ by less are one refusal. A choice: clocks and answers vary by less."""
LONGEST_TEXT = 2000
"""The most characters of an event's text."""


@dataclass(frozen=True)
class Point:
    """The figures of a receiver at one time, or merged over several."""

    time: float
    """Time of the first snapshot."""
    rows_in: float | None
    """Received rows a second; None when there was no earlier snapshot. Merged: the mean."""
    rows_out: float | None
    """Committed rows a second; None as above. Merged: the mean."""
    ack_age: float | None
    """Age of the oldest row without ACK; None when no row was held. Merged: the greatest."""
    rows: int
    """Held rows. Merged: the greatest."""
    bytes: int
    """Bytes in use. Merged: the greatest."""
    sessions: int
    """Connected sessions. Merged: the least, so that a loss stays visible."""
    serving: int
    """Slots whose worker served. Merged: the least."""


@dataclass(frozen=True)
class Batch:
    """A batch that Spark has reported. Merged: the longest one."""

    time: float
    """Time of the snapshot that had it first."""
    batch: int
    """Its number."""
    rows: int
    """Its rows."""
    durations: Mapping[str, int]
    """Milliseconds by Spark's names of its steps."""

    @property
    def milliseconds(self) -> int:
        """The time of the whole batch."""
        return self.durations.get("triggerExecution", 0)


@dataclass(frozen=True)
class RunEvent:
    """Something that has happened: a death, an error, a refused connection, or a change of the cause."""

    number: int
    """Its number in the run, from 0."""
    time: float
    """Time of the event."""
    kind: str
    """``death``, ``error``, ``refused`` or ``change``."""
    where: str
    """The part concerned: ``slot 3``, ``query``, ``driver``, or the receiver's name."""
    text: str
    """Description of the event: one sentence, or the error's text."""
    bad: bool
    """Whether it needs attention."""


class RunRecord:
    """The record of one run of a receiver."""

    def __init__(self) -> None:
        self.snapshots = History(SNAPSHOTS)
        self.recent: deque[Point] = deque(maxlen=RECENT)
        self.whole: ThinningSeries[Point] = ThinningSeries(WHOLE, merge_points)
        self.batches: deque[Batch] = deque(maxlen=BATCHES)
        self.all_batches: ThinningSeries[Batch] = ThinningSeries(WHOLE, merge_batches)
        self.batch_count = 0
        """Batches of the run, also those that ended between two snapshots and have no durations here."""
        self.event_count = 0
        self.death_count = 0
        self.most_sessions = 0
        self.rows_in = 0
        """Rows that the workers of the run have received, as far as the snapshots tell."""
        self.rows_out = 0
        """Rows of them that were committed."""
        self.started: float | None = None
        self._first_events: list[RunEvent] = []
        self._last_events: deque[RunEvent] = deque(maxlen=EVENTS)
        self._rates: Rates | None = None
        self._known: dict[str, str] = {}
        self._deaths: dict[int, tuple[int, float]] = {}
        self._refused: dict[int, dict[tuple[str, str], float]] = {}
        self._last_batch: tuple[str, int] | None = None
        self._trouble = ""
        self._calm_since: float | None = None
        self._counted: dict[int, tuple[int, Mapping[str, int], int, int]] = {}
        self._ack_ages: Counter[str] = Counter()

    def add(self, status: ReceiverStatus) -> None:
        """Add one snapshot. One that is not newer than the last one is ignored."""
        last = self.snapshots.last
        if last is not None and status.time <= last.time:
            return
        if self.started is None:
            self.started = status.time
        self.snapshots.add(status)
        self._rates = None
        point = _point(status, rates(_slots_alone(last), _slots_alone(status)) if last is not None else None)
        self.recent.append(point)
        self.whole.append(point)
        self.most_sessions = max(self.most_sessions, status.totals.sessions)
        self.count(status)
        self._add_batch(status)
        for event in self._events(status):
            self._add_event(*event)

    def rates(self) -> Rates:
        """The rates over the usual window, computed once for each snapshot."""
        if self._rates is None:
            self._rates = self.snapshots.rates()
        return self._rates

    def count(self, status: ReceiverStatus) -> None:
        """Add the rows that the workers have counted since the last snapshot."""
        for slot in status.slots:
            self._count(slot)

    def events(self) -> list[RunEvent]:
        """The kept events, the newest first."""
        last = list(self._last_events)
        first = [event for event in self._first_events if not last or event.number < last[0].number]
        return [*reversed(last), *reversed(first)]

    def ack_ages(self) -> list[tuple[float | None, int]]:
        """Acknowledged rows by the time since their arrival: (upper bound in seconds, rows); None: any longer time."""
        bounds = sorted(self._ack_ages, key=float)
        return [(None if bound == "+Inf" else float(bound), self._ack_ages[bound]) for bound in bounds]

    def _count(self, slot: SlotStatus) -> None:
        """Add the rows that a worker has counted since the last snapshot. A new worker counts from zero."""
        if not slot.answers:
            return
        known = self._counted.get(slot.slot)
        self._counted[slot.slot] = (slot.generation, slot.counts, slot.rows_in, slot.rows_out)
        _, counts, rows_in, rows_out = known if known and known[0] == slot.generation else (0, {}, 0, 0)
        self.rows_in += max(0, slot.rows_in - rows_in)
        self.rows_out += max(0, slot.rows_out - rows_out)
        for name, value in slot.counts.items():
            if name.startswith(ACK_AGE) and value > counts.get(name, 0):
                self._ack_ages[name.removeprefix(ACK_AGE)] += value - counts.get(name, 0)

    def _add_batch(self, status: ReceiverStatus) -> None:
        query = status.query
        batch = query.reported_batch if query.durations else None
        # Spark also reports that it has planned nothing; such a report has no step that reads.
        if batch is None or "addBatch" not in query.durations or self._last_batch == (query.run_id, batch):
            return
        self.batch_count += (
            batch - self._last_batch[1] if self._last_batch and self._last_batch[0] == query.run_id else 1
        )
        self._last_batch = (query.run_id, batch)
        one = Batch(status.time, batch, query.input_rows, dict(query.durations))
        self.batches.append(one)
        self.all_batches.append(one)

    def _add_event(self, time: float, kind: str, where: str, text: str, bad: bool) -> None:
        if len(text) > LONGEST_TEXT:
            text = f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"
        self.death_count += kind == "death"
        event = RunEvent(self.event_count, time, kind, where, text, bad)
        self.event_count += 1
        self._last_events.append(event)
        if len(self._first_events) < FIRST_EVENTS:
            self._first_events.append(event)

    def _events(self, status: ReceiverStatus) -> Iterator[tuple[float, str, str, str, bool]]:
        for slot in status.slots:
            yield from self._deaths_of(slot)
            yield from self._refusals_of(slot)
        query = status.query
        if self._is_new("query", query.error):
            yield query.error_at or status.time, "error", "query", query.error, True
        if self._is_new("watcher", query.watcher_error):
            yield status.time, "error", "checkpoint", query.watcher_error, True
        if self._is_new("registry", status.registry_error):
            yield status.time, "error", "registry", status.registry_error, True
        if self._is_new("driver", status.driver_error) and status.driver_error != status.registry_error:
            yield status.time, "error", "driver", status.driver_error, True
        yield from self._changes_of_cause(status)

    def _changes_of_cause(self, status: ReceiverStatus) -> Iterator[tuple[float, str, str, str, bool]]:
        """A new trouble, and the end of one. A slow sink that is a trouble in several batches is one event."""
        cause = status.cause
        if not cause.healthy:
            self._calm_since = None
            if cause.code != self._trouble:
                self._trouble = cause.code
                yield status.time, "change", status.name, cause.sentence, cause.code not in PASSING
        elif self._trouble:
            self._calm_since = status.time if self._calm_since is None else self._calm_since
            if status.time - self._calm_since >= CALM_SECONDS:
                self._trouble = ""
                yield self._calm_since, "change", status.name, cause.sentence, False

    def _is_new(self, name: str, text: str) -> bool:
        before = self._known.get(name, "")
        self._known[name] = text
        return bool(text) and text != before

    def _deaths_of(self, slot: SlotStatus) -> Iterator[tuple[float, str, str, str, bool]]:
        known = self._deaths.get(slot.slot, (0, 0.0))
        new = [death for death in slot.deaths if (death.submission, death.at) > known]
        for death in new:
            yield death.at, "death", f"slot {slot.slot}", death.error, True
        if new:
            self._deaths[slot.slot] = (new[-1].submission, new[-1].at)

    def _refusals_of(self, slot: SlotStatus) -> Iterator[tuple[float, str, str, str, bool]]:
        known = self._refused.get(slot.slot, {})
        # The time is computed from an age in each snapshot, so it differs a little; a peer's port distinguishes
        # connections.
        self._refused[slot.slot] = {(refusal.peer, refusal.kind): refusal.at for refusal in slot.refusals}
        for refusal in slot.refusals:
            at = known.get((refusal.peer, refusal.kind))
            if at is None or refusal.at - at > SAME_SECONDS:
                who = f"{refusal.instance} ({refusal.peer})" if refusal.instance else refusal.peer
                yield refusal.at, "refused", f"slot {slot.slot}", f"{who}: {refusal.reason}", True


def _slots_alone(status: ReceiverStatus) -> ReceiverStatus:
    """The snapshot with its slots alone, which suffice for the rates of the whole receiver."""
    return replace(status, instances=(), streams=())


def _point(status: ReceiverStatus, rates: Rates | None) -> Point:
    totals = status.totals
    return Point(
        status.time,
        rates.total.rows_in if rates else None,
        rates.total.rows_out if rates else None,
        totals.ack_age,
        totals.rows,
        totals.bytes,
        totals.sessions,
        totals.serving,
    )


def merge_points(points: list[Point]) -> Point:
    """One point in place of several neighbours."""
    return Point(
        points[0].time,
        _mean([point.rows_in for point in points]),
        _mean([point.rows_out for point in points]),
        max((point.ack_age for point in points if point.ack_age is not None), default=None),
        max(point.rows for point in points),
        max(point.bytes for point in points),
        min(point.sessions for point in points),
        min(point.serving for point in points),
    )


def merge_batches(batches: list[Batch]) -> Batch:
    """The longest of several neighbours."""
    return max(batches, key=lambda batch: batch.milliseconds)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
