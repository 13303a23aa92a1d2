"""The reasons why a receiver or an application waits, each as one sentence with a stable code. Pure.

The facts come from one snapshot. :data:`RECEIVER` and :data:`APPLICATION` are the ladders of causes, those that do most
harm first. Every cause that holds is shown, and the first one is *the* cause: a worker that has died explains a batch
that is not committed, and a batch that is not committed explains a connector without credits. The colour of the page,
the exit status of ``status`` and ``/healthz`` follow one rule: all is well while no cause that holds is a trouble.
Source: ``docs/status.md#causes``, ``docs/pipelines/see.md#causes``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from wallaroo_spark.codes import ENTRIES, GROUPS, CodeEntry
from wallaroo_spark.observe.application import ApplicationStatus, StageStatus
from wallaroo_spark.observe.receiver import (
    Cause,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    SlotStatus,
    StreamStatus,
    Totals,
)
from wallaroo_spark.texts import duration

OLD_SECONDS = 5.0
"""Age of the driver's last report, or of a page's figures, from which it counts as old. A choice: a driver reports once
a second."""
SLOW_SECONDS, FIRST_SECONDS = 2.0, 10.0
"""A phase of a batch that lasts longer, and twice as long as the whole batch before, is a cause of its own; the first
batch of a run may take FIRST_SECONDS, because Spark compiles the query. A choice: most batches take less than a second.
"""
LONG_SECONDS = 60.0
"""A phase of a batch that lasts longer is not healthy. A choice: batches of some seconds are normal for many sinks."""
QUIET_SECONDS = 2.0
"""Seconds of silence after which a connector counts as without data. A choice: longer than the pauses of a busy
sender."""
REFUSED_SECONDS = 60.0
"""Seconds for which a refused connection counts. A choice: connectors try again at least once in that time."""

S = TypeVar("S")
T = TypeVar("T", bound=tuple[Any, ...])


@dataclass(frozen=True)
class _Finding:
    """A cause without its subject."""

    code: str
    text: str
    """The sentence behind the subject."""
    cure: str = ""
    """The way out, where it says more than that of the code, or where the state is healthy."""
    healthy: bool | None = None
    """Whether all works as it should; None where the code alone says so."""

    @property
    def sound(self) -> bool:
        """Whether all works as it should."""
        return ENTRIES[self.code].healthy if self.healthy is None else self.healthy

    def of(self, subject: str, more: str = "", *, waits: bool = True) -> Cause:
        """The cause of a subject."""
        verb = " waits: " if waits and self.code != "flowing" else ": "
        entry = ENTRIES[self.code]
        cure = self.cure or ("" if entry.healthy else entry.cure.replace("`", ""))
        return Cause(self.code, f"{subject}{verb}{self.text}{more}", self.sound, cure)


def with_causes(status: ReceiverStatus) -> ReceiverStatus:
    """The snapshot with all its causes, and the cause of each of its parts."""
    if status.query.state == "standby":
        text = f"this driver waits as standby, and takes over when the driver {status.driver} is gone"
        cause = _Finding("standby-waits", text).of(status.name, waits=False)
        return dataclasses.replace(status, cause=cause, causes=(cause,))
    causes = tuple(finding.of(status.name) for finding in _ranked(RECEIVER, status))
    held_up = _first(_held_up(status))
    by_slot = {slot.slot: slot for slot in status.slots}
    slots = tuple(dataclasses.replace(slot, cause=_of_slot(status, slot, held_up)) for slot in status.slots)
    instances = tuple(
        dataclasses.replace(one, cause=_of_instance(status, one, by_slot.get(one.slot), held_up))
        for one in status.instances
    )
    by_instance = {(one.slot, one.name): one for one in instances}
    streams = tuple(
        dataclasses.replace(one, cause=_of_stream(status, one, by_instance.get((one.slot, one.instance)), held_up))
        for one in status.streams
    )
    return dataclasses.replace(
        status, cause=causes[0], causes=causes, slots=slots, instances=instances, streams=streams
    )


Ladder = tuple[Callable[[S], Iterator[_Finding]], ...]
"""Functions that find causes, those that do most harm first."""


def _ranked(ladder: Ladder[S], status: S) -> list[_Finding]:
    """The causes that hold, each code once: troubles before others. At the end of a ladder stands the usual work, which
    is a cause only without another one."""
    *rungs, work = ladder
    found: dict[str, _Finding] = {}
    for one in (one for rung in rungs for one in rung(status)):
        found.setdefault(one.code, one)
    return sorted(found.values(), key=lambda one: one.sound) or [next(work(status))]


def _first(found: Iterator[_Finding]) -> _Finding | None:
    return next(found, None)


def _not_running(status: ReceiverStatus) -> Iterator[_Finding]:
    """A failure outside the receiver, because of which its parts cannot be judged."""
    away = [slot for slot in status.slots if slot.registry_away]
    if status.registry_error or away:
        who = "the registry does not answer" if status.registry_error else _without_registry(away)
        # The error's own advice follows its first semicolon; the cause has a better one.
        detail = f": {status.registry_error.partition('; ')[0]}" if status.registry_error else ""
        text = f"{who}{detail}; connected sessions go on, new ones are told to come back"
        yield _Finding("registry-away", text)
    elif not status.running:
        yield _Finding("not-running", "no driver and no worker holds a lease in this registry")


def _without_registry(slots: list[SlotStatus]) -> str:
    numbers = ", ".join(str(slot.slot) for slot in slots[:5]) + (", …" if len(slots) > 5 else "")
    who, verb = ("worker of slot", "does") if len(slots) == 1 else ("workers of slots", "do")
    return f"the {who} {numbers} {verb} not reach the registry"


def _slots(*states: str) -> Callable[[ReceiverStatus], Iterator[_Finding]]:
    """The slots in one of these states, the worst state first; none of a receiver that does not run."""

    def found(status: ReceiverStatus) -> Iterator[_Finding]:
        if "vacant" in states and status.running and not status.slots:
            yield _Finding("slot-vacant", "no slot is known")
        for state in states if status.running else ():
            for slot in status.slots:
                if slot.state == state:
                    yield from _absent(status, slot)

    return found


def _died(status: ReceiverStatus, slot: SlotStatus) -> str:
    last = slot.deaths[-1] if slot.deaths else None
    when = f" {duration(max(0.0, status.time - last.at))} ago" if last else ""
    # The driver counts a death when the job has ended, or when another process serves the slot.
    counted = slot.died and slot.submissions is not None
    times = f" (death {slot.died}, submission {slot.submissions})" if counted else ""
    why = f": {last.error or 'it ended without an error'}" if last else ""
    return f"the worker of slot {slot.slot} has died{when}{times}{why}"


def _absent(status: ReceiverStatus, slot: SlotStatus) -> Iterator[_Finding]:
    """Why a slot's worker does not serve; nothing when it answers."""
    worker = f"the worker of slot {slot.slot}"
    by_state = {
        "frozen": (
            "worker-frozen",
            f"{worker} (process {slot.holder or 'unknown'}) accepts calls and does not answer; its process is stopped "
            "or hangs",
        ),
        "lost": ("worker-lost", _died(status, slot)),
        "unreachable": ("worker-unreachable", f"{worker} cannot be called: {slot.error}"),
        "starting": ("worker-starting", f"{worker} is being started"),
        "stopping": ("worker-stopping", f"{worker} is ending: {slot.stopping}"),
        "vacant": ("slot-vacant", f"nobody serves slot {slot.slot}"),
    }
    if slot.state in by_state:
        yield _Finding(*by_state[slot.state])


def _query_error(status: ReceiverStatus) -> Iterator[_Finding]:
    query = status.query
    if query.state == "failed" and query.error_kind == "checkpoint":
        yield _Finding(
            "checkpoint-unwritable",
            f"the query has failed because its checkpoint {query.checkpoint} cannot be used: {query.error}",
        )
    elif query.state == "failed":
        yield _Finding(
            "query-failed",
            f"the query has failed: {query.error}",
            f"mend that, then start it again: batch {_next_batch(query)} comes again with the same rows; where a row "
            "is the fault, let the query filter it out, or write it to another place",
        )
    elif query.watcher_error:
        yield _Finding(
            "checkpoint-unreadable",
            f"the driver cannot read the checkpoint, so nothing is acknowledged: {query.watcher_error}",
        )


def _next_batch(query: QueryStatus) -> int:
    """The batch that has failed: a new start plans the same rows for it."""
    return 0 if query.committed_batch is None else query.committed_batch + 1


_QUERY = {
    "none": ("query-not-started", "the receiver feeds no query, so workers accept no connector"),
    "stopped": ("query-stopped", "the query was stopped"),
    "starting": ("query-starting", "the query is being started"),
}
"""The causes of a query that does not run, by its state."""


def _query(status: ReceiverStatus) -> Iterator[_Finding]:
    """Why no query reads the receiver."""
    if not status.running:
        return
    if status.driver is None and not status.registry_error:
        yield _Finding(
            "driver-lost",
            "workers run, and no driver holds the lock of the receiver: it has ended, or does not reach the registry",
        )
    elif status.query.state in _QUERY:
        yield _Finding(*_QUERY[status.query.state])
    # A round that fails because the registry does not answer counts as the registry's failure.
    elif status.driver_error and not (status.registry_error or any(slot.registry_away for slot in status.slots)):
        yield _Finding("driver-error", f"the driver's last round has failed: {status.driver_error}")


_VERBS = {"reading": "has been reading for", "writing": "has been in the query and its sink for"}


def _batch(status: ReceiverStatus) -> Iterator[_Finding]:
    """The batch under way as a cause; nothing between batches."""
    phase, since = status.query.phase, status.query.since
    if status.query.batch is None or phase not in _VERBS:
        return
    seconds = max(0.0, status.time - since) if since is not None else 0.0
    text = f"batch {status.query.batch} {_VERBS[phase]} {duration(seconds)}"
    missing = sum(slot.read.missing for slot in status.slots if slot.read is not None)
    if phase == "reading" and missing and seconds >= SLOW_SECONDS:
        yield _Finding("resend-awaited", f"{text}; {missing:,} of its ranges have to be sent again by their connectors")
    elif seconds >= _usual(status.query):
        yield _Finding("sink-slow", text, healthy=seconds < LONG_SECONDS)
    else:
        yield _Finding("batch-running", text)


def _usual(query: QueryStatus) -> float:
    """Seconds that a batch may take before it is slow."""
    if query.committed_at is None:
        return FIRST_SECONDS
    return min(max(SLOW_SECONDS, query.durations.get("triggerExecution", 0) / 500), LONG_SECONDS)


def _slow_batch(status: ReceiverStatus) -> Iterator[_Finding]:
    # The buffer is full because its rows are not committed.
    full = any(slot.pressure == "hard" for slot in status.slots)
    for found in _batch(status):
        if found.code != "batch-running":
            yield dataclasses.replace(found, healthy=False) if full else found


def _driver_slow(status: ReceiverStatus) -> Iterator[_Finding]:
    age = status.report_age
    # Without the registry, the report cannot come.
    if status.driver is not None and not status.registry_error and age is not None and age >= OLD_SECONDS:
        yield _Finding(
            "driver-slow",
            f"the driver has reported nothing for {duration(age)}, so its figures are old and nothing is acknowledged",
        )


def _held_up(status: ReceiverStatus) -> Iterator[_Finding]:
    """The reasons why held rows are not committed, common to all parts."""
    rungs = (_WORKERS_GONE, _query_error, _WORKERS_AWAY, _query, _batch) if status.running else (_not_running,)
    return (found for rung in rungs for found in rung(status))


def _full(status: ReceiverStatus) -> Iterator[_Finding]:
    """A buffer that takes nothing, or above three quarters only what a waiting read needs."""
    full = [((one.pressure == "hard", one.ack_age or 0.0), one) for one in status.slots if one.pressure in _PRESSED]
    for (hard, age), worst in _greatest(full):
        yield _Finding(
            "memory-full",
            f"the buffer of slot {worst.slot} is full, so its connectors are not read",
            healthy=not hard and age < LONG_SECONDS,
        )


_PRESSED = ("soft", "hard")


def _greatest(found: Iterable[T]) -> list[T]:
    """The tuple with the greatest first part; none without any."""
    return sorted(found, key=lambda one: one[0], reverse=True)[:1]


def _refused(status: ReceiverStatus) -> Iterator[_Finding]:
    """Connections that were refused lately for a reason that the connector cannot remove by itself."""
    found = [
        ((refusal.kind == "wrong-cookie", refusal.at), refusal)
        for slot in status.slots
        for refusal in slot.refusals
        if status.time - refusal.at <= REFUSED_SECONDS and refusal.kind in _FINAL
    ]
    # While others are connected, the receiver works: the refused one may be a stranger.
    others = any(slot.sessions for slot in status.slots)
    for (cookie, at), last in _greatest(found):
        who = f"{last.instance} at {last.peer}" if last.instance else f"a connector at {last.peer}"
        refused = f"{who} was refused {duration(max(0.0, status.time - at))} ago"
        if cookie:
            yield _Finding("wrong-cookie", f"{refused}, because its cookie is wrong", healthy=others)
        else:
            yield _Finding("refused", f"{refused}: {last.reason}", healthy=others)


def _doors_wait(status: ReceiverStatus) -> Iterator[_Finding]:
    """The door whose oldest request waits so long that its clients give up."""
    late = [(one.oldest or 0.0, one) for one in status.doors if one.waiting and (one.oldest or 0.0) >= LATE_SECONDS]
    for age, door in _greatest(late):
        clients = list(door.waiting_by)
        whose = clients[0] if len(clients) == 1 else f"{len(clients)} clients of the door {door.door}"
        yield _Finding("door-waits", f"{_awaited(status.query, door.waiting, whose)}, the oldest for {duration(age)}")


def _awaited(query: QueryStatus, requests: int, whose: str = "") -> str:
    batch = _next_batch(query) if query.batch is None else query.batch
    what, verb = ("1 request", "waits") if requests == 1 else (f"{requests:,} requests", "wait")
    return f"{what}{f' of {whose}' if whose else ''} {verb} for batch {batch}"


def _doors_refuse(status: ReceiverStatus) -> Iterator[_Finding]:
    """What doors have refused lately and their clients cannot mend, and messages that were left out."""
    found = [one for slot in status.slots for one in slot.refusals if status.time - one.at <= REFUSED_SECONDS]
    for at, last in _greatest((one.at, one) for one in found if one.kind == "kafka-unreadable"):
        ago = duration(max(0.0, status.time - at))
        yield _Finding("kafka-unreadable", f"a record batch of {last.instance} was left out {ago} ago: {last.reason}")
    for _, last in _greatest((one.at, one) for one in found if one.kind == "kafka-wrong-node"):
        text = (
            f"{last.instance} at {last.peer} is led to the wrong worker, {last.times:,} times in a row: {last.reason}"
        )
        yield _Finding("kafka-wrong-node", text)
    for _, last in _greatest((one.at, one) for one in found if one.kind == "door-given-up"):
        yield _Finding("door-given-up", last.reason)
    of_doors = [one for one in found if one.kind.partition("-")[0] in GROUPS and one.kind not in _OF_STRANGERS]
    # As with connectors: while others are connected, the receiver works.
    others = any(slot.sessions for slot in status.slots)
    for at, last in _greatest((one.at, one) for one in of_doors if not _handled(ENTRIES.get(one.kind))):
        who = f"{last.instance} at {last.peer}" if last.instance else f"a client at {last.peer}"
        times = f", {last.times:,} times in a row" if last.times > 1 else ""
        text = f"{who} was refused {duration(max(0.0, status.time - at))} ago ({last.kind}{times}): {last.reason}"
        cure = ENTRIES[last.kind].cure.replace("`", "")
        yield _Finding("door-refused", text, cure, healthy=others or last.times < MANY)


def _handled(entry: CodeEntry | None) -> bool:
    """Whether clients go on by themselves after a refusal, or it is a cause of its own."""
    return entry is None or entry.healthy or bool(entry.check)


MANY = 10
"""Refusals of a door in a row, by one code, from which they count as a trouble where no other client is connected. A
choice: a stranger who tries a door gives up before."""
_OF_STRANGERS = frozenset(
    ["http-malformed", "http-method", "http-no-such-path", "http-head-too-large", "http-too-slow"]
)
"""Refusals that a program causes that tries any port of the network. They are counted, and shown below the tables."""
_FINAL = frozenset(
    [
        "bad-instance",
        "ids-not-increasing",
        "mixed-ephemeral",
        "not-this-protocol",
        "too-many-streams",
        "worker-full",
        "wrong-certificate",
        "wrong-cookie",
        "wrong-program",
        "wrong-version",
    ]
)
"""The kinds of refusals that do not end without a change by a person."""


def _work(status: ReceiverStatus) -> Iterator[_Finding]:
    """The activity of a receiver without a problem."""
    if status.totals.rows:
        yield _first(_batch(status)) or _awaits_trigger(status, status.totals.rows)
        return
    if not status.totals.sessions + status.totals.waiting:
        doors = " and no client of a door" if status.doors else ""
        yield _Finding("no-connector", f"no connector{doors} is connected")
    quiet = [one.last_frame_age for one in status.instances if one.last_frame_age is not None]
    if not quiet or min(quiet) >= QUIET_SECONDS:
        for_long = f" for {duration(min(quiet))}" if quiet else ""
        yield _Finding("no-data", f"no connector has sent anything{for_long}, and all rows are committed")
    yield _Finding("flowing", "rows arrive and are committed")


def _awaits_trigger(status: ReceiverStatus, rows: int) -> _Finding:
    trigger = f" (trigger: {status.query.trigger})" if status.query.trigger else ""
    return _Finding("trigger-awaited", f"{rows:,} rows are held, and the next batch has not begun{trigger}")


_WORKERS_GONE = _slots("frozen", "lost", "unreachable")
_WORKERS_AWAY = _slots("starting", "stopping", "vacant")
RECEIVER: Ladder[ReceiverStatus] = (
    _not_running,
    _WORKERS_GONE,
    _query_error,
    _driver_slow,
    _WORKERS_AWAY,
    _query,
    _slow_batch,
    _doors_wait,
    _full,
    _refused,
    _doors_refuse,
    _work,
)
"""The causes of a receiver, those that do most harm first."""


def _of_slot(status: ReceiverStatus, slot: SlotStatus, held_up: _Finding | None) -> Cause:
    return next(_slot_findings(status, slot, held_up)).of(f"{status.name} slot {slot.slot}")


def _slot_findings(status: ReceiverStatus, slot: SlotStatus, held_up: _Finding | None) -> Iterator[_Finding]:
    yield from _absent(status, slot)
    if slot.registry_away:
        yield _Finding("registry-away", "its worker does not reach the registry; new sessions are told to come back")
    yield from itertools.chain(_query_error(status), _query(status))
    if slot.rows and held_up is not None and held_up.code != "batch-running":
        yield held_up
    alone = dataclasses.replace(
        status,
        slots=(slot,),
        instances=tuple(one for one in status.instances if one.slot == slot.slot),
        totals=Totals(rows=slot.rows, sessions=slot.sessions, waiting=slot.waiting),
    )
    yield from itertools.chain(_full(alone), _refused(alone), _work(alone))


def _of_instance(
    status: ReceiverStatus, one: InstanceStatus, slot: SlotStatus | None, held_up: _Finding | None
) -> Cause:
    subject = f"{status.name}/{one.name}"
    found = next(_instance_findings(status, one, slot, held_up))
    more = f", credits {max(0, one.credits):,}" if one.state == "streaming" and found.code != "flowing" else ""
    if one.of_door:
        more = f"; {_awaited(status.query, one.requests)}" if one.requests else ""
    return found.of(subject, more)


def _instance_findings(
    status: ReceiverStatus, one: InstanceStatus, slot: SlotStatus | None, held_up: _Finding | None
) -> Iterator[_Finding]:
    if one.state == "waiting":
        if slot is not None and slot.registry_away:
            yield _Finding("registry-away", "its session begins once the registry answers")
        yield from itertools.chain(_query_error(status), _query(status))
        yield _Finding("session-pending", "its HELLO is being answered")
    if one.rows and held_up is not None:
        yield held_up
    if one.rows:
        if one.state == "gone":
            yield _Finding("connector-gone", f"it is not connected, and {one.rows:,} rows of it are held")
        yield _awaits_trigger(status, one.rows)
    if one.paused:
        yield _Finding("memory-full", "the worker's buffer is full, so this connector is not read")
    if one.credits <= 0 and one.state == "streaming":
        yield held_up or _Finding("no-credits", "it has used up its credits")
    age = one.last_frame_age
    if age is None or age >= QUIET_SECONDS:
        yield _Finding("no-data", f"it has sent nothing for {duration(age or 0.0)}, and all its rows are committed")
    yield _Finding("flowing", "its rows arrive and are committed")


def _of_stream(
    status: ReceiverStatus, one: StreamStatus, instance: InstanceStatus | None, held_up: _Finding | None
) -> Cause:
    subject = f"{status.name}/{one.instance}/{one.title}"
    if one.state == "resending":
        return _Finding("resend-awaited", "its sender has to send rows again").of(subject)
    if one.rows:
        found = held_up or _awaits_trigger(status, one.rows)
        age = f", its oldest row for {duration(one.ack_age)}" if one.ack_age is not None else ""
        return found.of(subject, age)
    if instance is not None:
        code, text = instance.cause.code, instance.cause.sentence.partition(": ")[2]
        if code not in ("flowing", ""):
            return dataclasses.replace(instance.cause, sentence=f"{subject} waits: {text}")
    return _Finding("flowing", "all its rows are committed").of(subject)


UNSERVED_SECONDS = 60.0
"""Seconds for which a stage may wait without a member. A choice: a worker that is started again comes within them."""
LATE_SECONDS = 30.0
"""Age of an event that no batch has read, or of a call that waits for its commit, from which the query counts as stuck.
A choice: a batch takes well under a second, and some seconds under load."""


def with_cause(status: ApplicationStatus) -> ApplicationStatus:
    """The snapshot with its causes."""
    causes = tuple(finding.of(status.application, waits=False) for finding in _ranked(APPLICATION, status))
    return dataclasses.replace(status, cause=causes[0], causes=causes)


def _stages(status: ApplicationStatus) -> list[tuple[str, StageStatus]]:
    """All stages, each with its pipeline."""
    return [(pipeline.pipeline, stage) for pipeline in status.pipelines for stage in pipeline.stages]


def _driver_of_application(status: ApplicationStatus) -> Iterator[_Finding]:
    query = status.query
    if query.state == "failed":
        kind = "checkpoint-unwritable" if query.error_kind == "checkpoint" else "query-failed"
        cure = (
            f"Mend that and start the application again; batch {_next_batch(query)} comes again with the same events."
        )
        if "[row-failed]" in query.error:
            cure += " wallaroo-spark pipelines set-aside goes on without the row."
        yield _Finding(kind, f"the query has failed: {query.error}", cure)
    elif not status.running:
        yield _Finding("application-not-running", "no driver runs it")
    if status.running and status.registry_error:
        yield _Finding("registry-away", f"the registry does not answer: {status.registry_error}")
    elif status.running and (status.round_age or 0.0) >= OLD_SECONDS:
        yield _Finding(
            "driver-slow",
            f"the driver has done nothing for {duration(status.round_age or 0.0)}, so its figures are old",
        )


def _gateways(status: ApplicationStatus) -> Iterator[_Finding]:
    away = [one for one in status.gateways if one.state in ("down", "starting")]
    if away and status.running:
        errors = [one.last_error for one in away if one.last_error]
        gone = ", ".join(one.gateway for one in away)
        why = f"; its last error: {errors[0]}" if errors else ""
        yield _Finding(
            "gateway-not-served",
            f"{len(away)} of {len(status.gateways)} gateways do not serve ({gone}){why}",
        )


def _query_of_application(status: ApplicationStatus) -> Iterator[_Finding]:
    query = status.query
    if not status.running or query.state == "failed":
        return
    if query.state in ("none", "starting", "unknown"):
        yield _Finding("query-starting", "the query starts")
        return
    if query.state == "stopped":
        yield _Finding("query-stopped", "the query was stopped", "Start the application again; it continues.")
        return
    waiting = max((one.oldest_request or 0.0 for one in status.gateways), default=0.0)
    running = status.time - query.since if query.batch is not None and query.since is not None else 0.0
    if running > LONG_SECONDS or waiting > LATE_SECONDS:
        batch = f"batch {query.batch} has run for {duration(running)}" if running > LONG_SECONDS else ""
        call = f"a call has waited for its commit for {duration(waiting)}" if waiting > LATE_SECONDS else ""
        yield _Finding("query-stuck", ", and ".join(filter(None, (batch, call))))


FAILING_ATTEMPTS, FAILING_SECONDS = 3, 60.0
"""Attempts of one delivery, or seconds since the first of two, from which its stage counts as failing. A choice: one
repetition is normal where services restart."""
LATELY_SECONDS = 60.0
"""Seconds for which a failed instance or a refused token counts. A choice, as REFUSED_SECONDS."""


def _failing(status: ApplicationStatus) -> Iterator[_Finding]:
    """The stage and the group that have tried one delivery longest."""
    stages = [(stage.failing or 0.0, pipeline, stage) for pipeline, stage in _stages(status) if is_failing(stage)]
    for seconds, pipeline, stage in _greatest(stages):
        others = f", {_wait(stage.retrying)} for the next attempt" if stage.retrying else ""
        yield _Finding(
            "stage-failing",
            f"stage {stage.stage} of {pipeline} has failed {stage.attempts} times in {duration(seconds)} for one "
            f"instance{others}; the last reason: {stage.reason or 'none was given'}",
            "Mend the function or its service, and it goes on. Or cancel the instance: wallaroo-spark pipelines "
            f"instances {pipeline} shows which. maxAttempts of the stage's retry ends such instances.",
        )
    groups = [
        (group.oldest or 0.0, one, group)
        for one in status.partitions
        for group in one.groups
        if group.reason and _fails(group.attempts - 1, group.oldest)
    ]
    for seconds, one, group in _greatest(groups):
        yield _Finding(
            "group-failing",
            f"group {group.group} has tried the events behind offset {group.cursor} of partition {one.partition} of "
            f"{one.stream} {group.attempts} times in {duration(seconds)}; the last reason: {group.reason}",
        )


def is_failing(stage: StageStatus) -> bool:
    """Whether a delivery of a stage fails again and again."""
    return _fails(stage.attempts, stage.failing)


def _fails(attempts: int, seconds: float | None) -> bool:
    return attempts >= FAILING_ATTEMPTS or (attempts > 1 and (seconds or 0.0) >= FAILING_SECONDS)


def _ended_badly(status: ApplicationStatus) -> Iterator[_Finding]:
    """The pipeline of which an instance has failed last. While others end well, it may be the event's own fault."""
    lately = status.time - LATELY_SECONDS
    failed = [(one.failed_at, one) for one in status.pipelines if one.failed_at is not None and one.failed_at >= lately]
    for at, last in _greatest(failed):
        ago = duration(max(0.0, status.time - at))
        yield _Finding(
            "instances-failed",
            f"an instance of {last.pipeline} has failed {ago} ago, {last.failed} in all: {last.reason}",
            f"wallaroo-spark pipelines instances {last.pipeline} --state failed shows them.",
            last.done_at is not None and last.done_at >= lately,
        )


def _clients_refused(status: ApplicationStatus) -> Iterator[_Finding]:
    """The gateway that has refused a token last. While others work, it may be that of a stranger."""
    found = [(-one.refused_age, one) for one in status.gateways if one.refused_age is not None]
    for age, last in _greatest(late for late in found if -late[0] < LATELY_SECONDS):
        yield _Finding(
            "clients-refused",
            f"gateway {last.gateway} has refused a client {duration(-age)} ago: {last.refused_reason}",
            healthy=any(one.members or one.requests for one in status.gateways),
        )


def _without_member(status: ApplicationStatus) -> Iterator[_Finding]:
    """The stage that has waited longest for a member."""
    found = [(stage.unserved or 0.0, one, stage) for one, stage in _stages(status)]
    for seconds, pipeline, stage in _greatest(late for late in found if late[0] >= UNSERVED_SECONDS):
        yield _Finding(
            "stage-without-member",
            f"stage {stage.stage} of {pipeline} has had no member for {duration(seconds)}, and "
            f"{_wait(stage.waiting)} for one",
            f"Start a program that works on it: wallaroo-spark stage {pipeline} {stage.stage} --exec COMMAND.",
        )


def _hung(status: ApplicationStatus) -> Iterator[_Finding]:
    """Stages all of whose places are kept by deliveries that were taken away from their members."""
    for pipeline, stage in _stages(status):
        if stage.waiting and 0 < stage.places <= stage.overdue:
            taken = "1 delivery that was" if stage.overdue == 1 else f"{stage.overdue} deliveries that were"
            yield _Finding(
                "members-hang",
                f"the members of stage {stage.stage} of {pipeline} have not ended {taken} taken away from them, and "
                f"{_wait(stage.waiting)}",
            )


def _errors(status: ApplicationStatus) -> Iterator[_Finding]:
    if status.errors and status.running:
        yield _Finding("application-error", status.errors[0])


def _members_full(status: ApplicationStatus) -> Iterator[_Finding]:
    """The stage for whose members most deliveries wait, when more wait than these work on at once."""
    found = [
        (stage.waiting / stage.places, pipeline, stage)
        for pipeline, stage in _stages(status)
        if 0 < stage.places < stage.waiting and stage.running >= stage.places
    ]
    for _, pipeline, stage in _greatest(found):
        alone = "the only member works on one at a time"
        work = alone if stage.places == 1 else f"its members work on {stage.places} at once"
        yield _Finding(
            "members-full",
            f"stage {stage.stage} of {pipeline}: {work}, and {_wait(stage.waiting)}",
            "Give the program a higher concurrency, or start further ones.",
        )


def _work_of_application(status: ApplicationStatus) -> Iterator[_Finding]:
    active = sum(one.active for one in status.pipelines)
    lag = sum(one.lag for one in status.pipelines)
    calls = sum(one.requests for one in status.gateways)
    if active or lag or calls:
        text = f"{active} active instances, {lag} records wait, {calls} calls in flight"
        yield _Finding("application-flowing", text)
    else:
        yield _Finding("application-idle", "everything that has come is done")


APPLICATION: Ladder[ApplicationStatus] = (
    _driver_of_application,
    _gateways,
    _query_of_application,
    _without_member,
    _failing,
    _hung,
    _errors,
    _ended_badly,
    _clients_refused,
    _members_full,
    _work_of_application,
)
"""The causes of an application, those that do most harm first."""


def _wait(number: int) -> str:
    return "1 delivery waits" if number == 1 else f"{number} deliveries wait"


PARTS = ("driver", "registry", "slots", "query", "checkpoint", "connectors")
"""The parts of a receiver; the code of a cause says whose trouble it is."""


def health(status: ReceiverStatus | None) -> dict[str, Any]:
    """The answer of ``/healthz`` on a snapshot with its causes, as JSON-ready values; None: the driver has no new one.

    Anybody who reaches the port may ask for it, so it contains codes and counts, and no names, addresses or error
    texts. Source: ``docs/monitoring.md#health``.
    """
    troubles = _troubles(status)
    checks = {part: next((code for code in troubles if ENTRIES[code].check == part), "ok") for part in PARTS}
    slots = () if status is None else status.slots
    return {
        "healthy": not troubles,
        "reasons": [f"{part}: {code}" for part, code in checks.items() if code != "ok"],
        "checks": checks,
        "slots": {"serving": sum(slot.answers for slot in slots), "all": len(slots)},
    }


def application_health(status: ApplicationStatus | None) -> dict[str, Any]:
    """The same of an application."""
    troubles = _troubles(status)
    return {"healthy": not troubles, "reasons": troubles}


def _troubles(status: ReceiverStatus | ApplicationStatus | None) -> list[str]:
    return ["driver-slow"] if status is None else [cause.code for cause in status.causes if not cause.healthy]
