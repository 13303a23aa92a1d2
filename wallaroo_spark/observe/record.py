"""The records of a run: counters, rates, figures, batches and events of a receiver or an application. Pure.

All are bounded. The status page shows their end, the run report all of a receiver's. Source:
``docs/status-page.md#run-report``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.receiver import InstanceStatus, ReceiverStatus, SlotStatus, StreamStatus

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
        self._last_jobs: Counter[str] = Counter()

    def add(self, slot: SlotStatus) -> None:
        """Add one snapshot. An answer is ignored when a newer one of the same worker was added before."""
        if slot.answers or slot.counts:
            # Each counter by its greatest value: an answer that comes late has lower ones.
            known = self._workers.setdefault((slot.generation, slot.holder, slot.pid), Counter())
            known |= Counter({**slot.counts, ROWS_IN: slot.rows_in, ROWS_OUT: slot.rows_out})
            if len(self._workers) > KEPT_WORKERS:
                self._former.update(self._workers.pop(next(iter(self._workers))))
        for name, value in (("deaths", slot.died), ("submissions", slot.submissions or 0)):
            # Another start of the fleet counts from zero.
            last = self._last_jobs[name]
            self._jobs[name] += value - last if value >= last else value
            self._last_jobs[name] = value

    def totals(self) -> Counter[str]:
        """The counters, by the names of a worker's counts; those of its job, ROWS_IN and ROWS_OUT beside them."""
        return sum((self._former, self._jobs, *self._workers.values()), Counter())


class Aggregate:
    """The counters of a receiver by slot, from its snapshots. Slots that do not answer keep their last values.

    They never go backwards, although workers die and start again from zero. Source: ``docs/monitoring.md#counters``.
    """

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


P = TypeVar("P", InstanceStatus, StreamStatus)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
WINDOW_SECONDS = 5.0
"""The usual window of a rate. A choice: some batches long, and short enough to follow a change with the eye."""
HISTORY = 300
"""Snapshots that a history keeps. A choice: five minutes at one a second."""


@dataclass(frozen=True)
class Rate:
    """Rows a second over a window."""

    rows_in: float = 0.0
    """Received rows a second."""
    rows_out: float = 0.0
    """Committed rows a second."""


@dataclass(frozen=True)
class Rates:
    """The rates of a receiver and its parts between two snapshots. A part that is in only one of both has none."""

    seconds: float = 0.0
    """The time between the snapshots."""
    total: Rate = field(default_factory=Rate)
    """Sum over the slots."""
    slots: Mapping[int, Rate] = field(default_factory=dict)
    """By slot."""
    instances: Mapping[tuple[int, str], Rate] = field(default_factory=dict)
    """By slot and instance."""
    streams: Mapping[tuple[int, str, int], Rate] = field(default_factory=dict)
    """By slot, scope and stream id."""


def rates(before: ReceiverStatus, after: ReceiverStatus) -> Rates:
    """The rates between two snapshots of one receiver; all zero when no time lies between them.

    A worker that was replaced meanwhile counts from zero. Its former rows are not part of the rate.
    """
    seconds = after.time - before.time
    if seconds <= 0:
        return Rates()
    known = {slot.slot: slot for slot in before.slots if slot.answers}
    slots: dict[int, Rate] = {}
    same = set()
    for slot in after.slots:
        if slot.answers and (old := known.get(slot.slot)) is not None:
            if old.generation == slot.generation:
                same.add(slot.slot)
            else:
                old = SlotStatus(slot.slot, old.state)
            slots[slot.slot] = _rate(old, slot, seconds)

    def of_parts(olds: Iterable[P], news: Iterable[P], key: Callable[[P], K]) -> dict[K, Rate]:
        by_key = {key(one): one for one in olds}
        found = {key(one): one for one in news if one.slot in same}
        return {name: _rate(by_key[name], one, seconds) for name, one in found.items() if name in by_key}

    return Rates(
        seconds,
        Rate(sum(rate.rows_in for rate in slots.values()), sum(rate.rows_out for rate in slots.values())),
        slots,
        of_parts(before.instances, after.instances, lambda one: (one.slot, one.name)),
        of_parts(before.streams, after.streams, lambda one: (one.slot, one.scope, one.stream_id)),
    )


def _rate(
    before: SlotStatus | InstanceStatus | StreamStatus,
    after: SlotStatus | InstanceStatus | StreamStatus,
    seconds: float,
) -> Rate:
    came, left = after.rows_in - before.rows_in, after.rows_out - before.rows_out
    return Rate(max(0, came) / seconds, max(0, left) / seconds)


class History(deque[ReceiverStatus]):
    """The last snapshots of one receiver, the oldest first; at most ``size``."""

    def __init__(self, size: int = HISTORY) -> None:
        super().__init__(maxlen=size)

    def add(self, status: ReceiverStatus) -> None:
        """Append a snapshot. One that is not newer than the last one is ignored."""
        if not self or status.time > self[-1].time:
            self.append(status)

    def rates(self, seconds: float = WINDOW_SECONDS) -> Rates:
        """The rates over the last ``seconds``, or over the whole history when that is shorter."""
        if not self:
            return Rates()
        last = self[-1]
        first = next(one for one in self if one.time >= last.time - seconds)
        if first is last and len(self) > 1:
            first = self[-2]
        return rates(first, last)


S = TypeVar("S", bound=ReceiverStatus | ApplicationStatus)


class ThinningSeries(Generic[T]):
    """At most ``size`` values, the oldest first, each merged out of ``stride`` appended ones."""

    def __init__(self, size: int, merge: Callable[[list[T]], T]) -> None:
        """``size`` is even and at least 2; ``merge`` makes one value of one or more neighbours."""
        self._size = size
        self._merge = merge
        self._values: list[T] = []
        self._pending: list[T] = []
        self.stride = 1

    def __len__(self) -> int:
        return len(self._values) + bool(self._pending)

    def __iter__(self) -> Iterator[T]:
        """All values; the last one may be of fewer appended values than the others."""
        yield from self._values
        if self._pending:
            yield self._merge(self._pending)

    def append(self, value: T) -> None:
        """Append one value."""
        self._pending.append(value)
        if len(self._pending) < self.stride:
            return
        self._values.append(self._merge(self._pending))
        self._pending = []
        if len(self._values) >= self._size:
            pairs = zip(self._values[::2], self._values[1::2], strict=False)
            self._values = [self._merge([first, second]) for first, second in pairs]
            self.stride *= 2


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
    """Seconds since 1970."""
    kind: str
    """``death``, ``error``, ``refused`` or ``change``."""
    where: str
    """The part concerned: ``slot 3``, ``query``, ``driver``, or the receiver's name."""
    text: str
    """Description of the event: one sentence, or the error's text."""
    bad: bool
    """Whether it needs attention."""


Event = tuple[float, str, str, str, bool]
"""The fields of a :class:`RunEvent` behind its number."""


class KeptRecord(Generic[S]):
    """What the records of receivers and applications have in common: batches and events."""

    def __init__(self) -> None:
        self.last: S | None = None
        """The newest snapshot."""
        self.batches: deque[Batch] = deque(maxlen=BATCHES)
        """The newest batches, the oldest first."""
        self.all_batches: ThinningSeries[Batch] = ThinningSeries(WHOLE, merge_batches)
        self.batch_count = 0
        """Batches of the run, also those that ended between two snapshots and have no durations here."""
        self.event_count = 0
        self.death_count = 0
        self._first_events: list[RunEvent] = []
        self._last_events: deque[RunEvent] = deque(maxlen=EVENTS)
        self._last_batch: tuple[str, int] | None = None

    def add(self, status: S) -> None:
        """Add one snapshot. One that is not newer than the last one is ignored."""
        if self.last is None or status.time > self.last.time:
            for event in self._events(self.last, status):
                self._add_event(*event)
            self._add_batch(status)
            self._add_figures(self.last, status)
            self.last = status

    def events(self) -> list[RunEvent]:
        """The kept events, the newest first."""
        first = self._first_events[: self.event_count - len(self._last_events)]
        return [*reversed(self._last_events), *reversed(first)]

    def _events(self, before: S | None, status: S) -> Iterator[Event]:
        raise NotImplementedError

    def _add_figures(self, before: S | None, status: S) -> None:
        raise NotImplementedError

    def _add_batch(self, status: S) -> None:
        query = status.query
        batch = query.reported_batch if query.durations else None
        # Spark also reports that it has planned nothing; such a report has no step that reads.
        if batch is None or "addBatch" not in query.durations or self._last_batch == (query.run_id, batch):
            return
        run, last = self._last_batch or (None, 0)
        self.batch_count += batch - last if run == query.run_id else 1
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


class RunRecord(KeptRecord[ReceiverStatus]):
    """The record of one run of a receiver."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots = History(SNAPSHOTS)
        self.recent: deque[Point] = deque(maxlen=RECENT)
        self.whole: ThinningSeries[Point] = ThinningSeries(WHOLE, merge_points)
        self.most_sessions = 0
        self.counts: Counter[str] = Counter()
        """What the workers of the run have counted, as far as the snapshots tell."""
        self.started: float | None = None
        self._rates: Rates | None = None
        self._known: dict[str, str] = {}
        self._deaths: dict[int, tuple[int, float]] = {}
        self._refused: dict[int, dict[tuple[str, str], float]] = {}
        self._trouble = ""
        self._calm_since: float | None = None
        self._aggregate = Aggregate()

    def _add_figures(self, before: ReceiverStatus | None, status: ReceiverStatus) -> None:
        if self.started is None:
            self.started = status.time
        self.snapshots.add(status)
        self._rates = None
        # The slots alone suffice for the rates of the whole receiver.
        point = _point(status, rates(before, replace(status, instances=(), streams=())).total if before else None)
        self.recent.append(point)
        self.whole.append(point)
        self.most_sessions = max(self.most_sessions, status.totals.sessions)
        self.count(status)

    def rates(self) -> Rates:
        """The rates over the usual window, computed once for each snapshot."""
        if self._rates is None:
            self._rates = self.snapshots.rates()
        return self._rates

    def count(self, status: ReceiverStatus) -> None:
        """Add what the workers have counted since the last snapshot. A new worker counts from zero."""
        self._aggregate.add(status)
        self.counts = sum(self._aggregate.counts().values(), Counter())

    @property
    def rows_in(self) -> int:
        """Rows that the workers have received."""
        return self.counts[ROWS_IN]

    @property
    def rows_out(self) -> int:
        """Rows of them that were committed."""
        return self.counts[ROWS_OUT]

    def ack_ages(self) -> list[tuple[float | None, int]]:
        """Acknowledged rows by the time since their arrival: (upper bound in seconds, rows); None: any longer time."""
        found = {name.removeprefix(ACK_AGE): rows for name, rows in self.counts.items() if name.startswith(ACK_AGE)}
        return [(None if bound == "+Inf" else float(bound), found[bound]) for bound in sorted(found, key=float)]

    def _events(self, before: ReceiverStatus | None, status: ReceiverStatus) -> Iterator[Event]:
        for slot in status.slots:
            yield from self._deaths_of(slot)
            yield from self._refusals_of(slot)
        query = status.query
        for where, error, at in (
            ("query", query.error, query.error_at),
            ("checkpoint", query.watcher_error, None),
            ("registry", status.registry_error, None),
            ("driver", status.driver_error, None),
        ):
            # A round that fails because the registry does not answer is the registry's error.
            repeated = error == self._known.get(where) or (where == "driver" and error == status.registry_error)
            if error and not repeated:
                yield at or status.time, "error", where, error, True
            self._known[where] = error
        yield from self._changes_of_cause(status)

    def _changes_of_cause(self, status: ReceiverStatus) -> Iterator[Event]:
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

    def _deaths_of(self, slot: SlotStatus) -> Iterator[Event]:
        known = self._deaths.get(slot.slot, (0, 0.0))
        for death in slot.deaths:
            if (death.submission, death.at) > known:
                self._deaths[slot.slot] = (death.submission, death.at)
                yield death.at, "death", f"slot {slot.slot}", death.error, True

    def _refusals_of(self, slot: SlotStatus) -> Iterator[Event]:
        known = self._refused.get(slot.slot, {})
        # The time is computed from an age in each snapshot, so it differs a little; a peer's port distinguishes
        # connections.
        self._refused[slot.slot] = {(refusal.peer, refusal.kind): refusal.at for refusal in slot.refusals}
        kinds = {kind for _, kind in known}
        for refusal in slot.refusals:
            at = known.get((refusal.peer, refusal.kind))
            # Of a door's refusals in a row, the first that was seen is shown.
            goes_on = refusal.times > 1 and refusal.kind in kinds
            if (at is None or refusal.at - at > SAME_SECONDS) and not goes_on:
                names = [name for name in (refusal.instance, refusal.peer) if name]
                who = f"{names[0]} ({names[1]})" if len(names) > 1 else "".join(names)
                yield refusal.at, "refused", f"slot {slot.slot}", f"{who}: {refusal.reason}", True


_LEVELS: Mapping[str, Callable[..., Any]] = {"ack_age": max, "rows": max, "bytes": max, "sessions": min, "serving": min}
"""The totals that a point has, each with what becomes of several neighbours."""


def _point(status: ReceiverStatus, rate: Rate | None) -> Point:
    rows_in, rows_out = (rate.rows_in, rate.rows_out) if rate else (None, None)
    return Point(status.time, rows_in, rows_out, **{name: getattr(status.totals, name) for name in _LEVELS})


def merge_points(points: list[Point]) -> Point:
    """One point in place of several neighbours."""

    def known(name: str) -> list[float]:
        return [value for point in points if (value := getattr(point, name)) is not None]

    rows_in, rows_out = (
        sum(values) / len(values) if (values := known(name)) else None for name in ("rows_in", "rows_out")
    )
    levels = {name: merge(known(name), default=None) for name, merge in _LEVELS.items()}
    return Point(points[0].time, rows_in, rows_out, **levels)


def merge_batches(batches: list[Batch]) -> Batch:
    """The longest of several neighbours."""
    return max(batches, key=lambda batch: batch.milliseconds)


CHANGING = frozenset(["query-starting", "application-idle", "application-flowing", "members-full"])
"""Causes that change with every batch or at every start, and so are no events."""


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


class ApplicationRecord(KeptRecord[ApplicationStatus]):
    """The record of one run of an application. It has no report."""

    def __init__(self) -> None:
        super().__init__()
        self.recent: deque[Figures] = deque(maxlen=RECENT)
        """Figures, the oldest first."""
        self._totals: deque[tuple[float, dict[str, float]]] = deque(maxlen=RECENT)
        """The time of each snapshot of the window, and its counters by the name of their rate."""

    def _add_figures(self, before: ApplicationStatus | None, status: ApplicationStatus) -> None:
        totals: dict[str, float] = {
            # It falls when a gateway begins anew.
            "events": sum(one.counts.get("inbox-events", 0) for one in status.gateways),
            "records": sum(one.records for one in status.partitions),
            "outputs": sum(stage.done for one in status.pipelines for stage in one.stages),
        }
        while len(self._totals) > 1 and status.time - self._totals[1][0] >= WINDOW_SECONDS:
            self._totals.popleft()
        rates: dict[str, float | None] = dict.fromkeys(totals)
        if self._totals:
            time, earlier = self._totals[0]
            rates = {name: max(0.0, now - earlier[name]) / (status.time - time) for name, now in totals.items()}
        unread = sum(one.unread_events for one in status.gateways)
        self.recent.append(Figures(status.time, **rates, unread=unread))
        self._totals.append((status.time, totals))

    def _events(self, before: ApplicationStatus | None, status: ApplicationStatus) -> Iterator[Event]:
        name, cause = status.application, status.cause
        if (before.cause.code if before else "") != cause.code and cause.code not in CHANGING:
            yield status.time, "change", name, cause.sentence, not cause.healthy
        for error in status.errors:
            if before is None or error not in before.errors:
                yield status.time, "error", name, error, True
        starts = {one.gateway: one.submissions for one in before.gateways} if before else {}
        for one in status.gateways:
            if one.submissions > starts.get(one.gateway, one.submissions):
                text = one.last_error or "its Spark job has ended"
                yield status.time, "death", one.gateway, f"it is started again: {text}", True
        if before is not None and status.query_starts > before.query_starts > 0:
            yield status.time, "change", "query", "the query was started again", True
        if before is not None and before.schema != status.schema:
            yield status.time, "change", name, f"version {status.schema} of the schema is applied", False
