"""The reason why a receiver, each slot, instance and stream waits: one sentence with a stable code. Pure.

The facts come from one snapshot. A more specific cause precedes a general one: a worker that has died explains a batch
that is not committed, and a batch that is not committed explains a connector without credits. Source:
``docs/status.md#causes``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from wallaroo_spark.codes.groups.status import STATUS
from wallaroo_spark.status.model import (
    Cause,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    Refusal,
    SlotStatus,
    StreamStatus,
)

SLOW_SECONDS = 2.0
"""A phase of a batch that lasts longer is a cause of its own. A choice: most batches take well under a second."""
LONG_SECONDS = 60.0
"""A phase of a batch that lasts longer is not healthy. A choice: batches of some seconds are normal for many sinks."""
QUIET_SECONDS = 2.0
"""Seconds of silence after which a connector counts as without data. A choice: longer than the pauses of a busy
sender."""
REFUSED_SECONDS = 60.0
"""Seconds for which a refused connection counts. A choice: connectors try again at least once in that time."""

CODES = {entry.code: entry.title for entry in STATUS.entries}
"""Every code of a cause with its meaning. Codes are stable: programs may compare them."""

HEALTHY = frozenset(
    [
        "batch-running",
        "connector-gone",
        "flowing",
        "no-connector",
        "no-credits",
        "no-data",
        "query-starting",
        "session-pending",
        "trigger-awaited",
    ]
)
"""The codes of a receiver that works as it should."""


@dataclass(frozen=True)
class _Finding:
    """A cause without its subject."""

    code: str
    """Its code."""
    text: str
    """The sentence behind the subject."""
    cure: str = ""
    """The way out."""
    healthy: bool | None = None
    """Whether all works as it should; None where the code alone says so."""

    @property
    def sound(self) -> bool:
        """Whether all works as it should."""
        return self.code in HEALTHY if self.healthy is None else self.healthy

    def of(self, subject: str, more: str = "") -> Cause:
        """The cause of a subject."""
        verb = ": " if self.code == "flowing" else " waits: "
        return Cause(self.code, f"{subject}{verb}{self.text}{more}", self.sound, self.cure)


def with_causes(status: ReceiverStatus) -> ReceiverStatus:
    """The snapshot with the cause of each of its parts."""
    whole = _receiver(status)
    held_up = _held_up(status)
    by_slot = {slot.slot: slot for slot in status.slots}
    slots = tuple(
        dataclasses.replace(slot, cause=_slot(status, slot, held_up).of(f"{status.name} slot {slot.slot}"))
        for slot in status.slots
    )
    instances = tuple(
        dataclasses.replace(one, cause=_of_instance(status, one, by_slot.get(one.slot), held_up))
        for one in status.instances
    )
    by_instance = {(one.slot, one.name): one for one in instances}
    streams = tuple(
        dataclasses.replace(one, cause=_of_stream(status, one, by_instance.get((one.slot, one.instance)), held_up))
        for one in status.streams
    )
    return dataclasses.replace(status, cause=whole.of(status.name), slots=slots, instances=instances, streams=streams)


def seconds_text(seconds: float) -> str:
    """Seconds for a person: ``0.4 s``, ``42 s``, ``3 min``, ``2 h``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _receiver(status: ReceiverStatus) -> _Finding:
    slow, full = _slow_batch(status), _full(status)
    if slow is not None and full is not None:
        # The buffer is full because its rows are not committed.
        slow = dataclasses.replace(slow, healthy=False)
    return (
        _outside(status)
        or _worst_slot(status)
        or _query(status)
        or (slow if slow is not None and not slow.sound else None)
        or full
        or _refused(status, status.slots)
        or slow
        or _work(status, status.totals.rows, status.totals.sessions + status.totals.waiting)
    )


def _outside(status: ReceiverStatus) -> _Finding | None:
    """A failure outside the receiver, because of which its parts cannot be judged."""
    away = [slot for slot in status.slots if slot.registry_away]
    if status.registry_error or away:
        who = "the registry does not answer" if status.registry_error else _without_registry(away)
        # The error's own advice follows its first semicolon; the cause has a better one.
        detail = f": {status.registry_error.partition('; ')[0]}" if status.registry_error else ""
        return _Finding(
            "registry-away",
            f"{who}{detail}; connected sessions go on, new ones are told to come back",
            "start Redis again, or mend the network to it; nothing in it needs to be restored",
        )
    if not status.running:
        return _Finding(
            "not-running",
            "no driver and no worker holds a lease in this registry",
            "start it with wallaroo-spark receive or Receiver.start, or check the name and the registry",
        )
    return None


def _without_registry(slots: list[SlotStatus]) -> str:
    numbers = ", ".join(str(slot.slot) for slot in slots[:5]) + (", …" if len(slots) > 5 else "")
    if len(slots) == 1:
        return f"the worker of slot {numbers} does not reach the registry"
    return f"the workers of slots {numbers} do not reach the registry"


def _worst_slot(status: ReceiverStatus) -> _Finding | None:
    """The worst slot whose worker does not answer."""
    for state in ("frozen", "lost", "unreachable"):
        found = next((slot for slot in status.slots if slot.state == state), None)
        if found is not None:
            return _absent(status, found)
    error = _query_error(status.query)
    if error is not None:
        return error
    for state in ("starting", "stopping", "vacant"):
        found = next((slot for slot in status.slots if slot.state == state), None)
        if found is not None:
            return _absent(status, found)
    return None


def _absent(status: ReceiverStatus, slot: SlotStatus) -> _Finding | None:
    """Why a slot's worker does not serve; None when it answers."""
    number, last = slot.slot, slot.deaths[-1] if slot.deaths else None
    if slot.state == "frozen":
        return _Finding(
            "worker-frozen",
            f"the worker of slot {number} (process {slot.holder or 'unknown'}) accepts calls and does not answer; "
            "its process is stopped or hangs",
            "the driver replaces it once its lease has been expired for long; a stopped process can also be continued",
        )
    if slot.state == "lost":
        when = f" {seconds_text(max(0.0, status.time - last.at))} ago" if last else ""
        why = f": {last.error or 'it ended without an error'}" if last else ""
        # The driver counts a death when the job has ended, or when another process serves the slot.
        counted = slot.died and slot.submissions is not None
        times = f" (death {slot.died}, submission {slot.submissions})" if counted else ""
        return _Finding(
            "worker-lost",
            f"the worker of slot {number} has died{when}{times}{why}",
            "the driver submits it again; when it dies again and again, look at its error and the executor's log",
        )
    if slot.state == "unreachable":
        return _Finding(
            "worker-unreachable",
            f"the worker of slot {number} cannot be called: {slot.error}",
            "its inner port must be reachable from here",
        )
    if slot.state == "starting":
        return _Finding("worker-starting", f"the worker of slot {number} is being started")
    if slot.state == "stopping":
        return _Finding("worker-stopping", f"the worker of slot {number} is ending: {slot.stopping}")
    if slot.state == "vacant":
        return _Finding("slot-vacant", f"nobody serves slot {number}", "look at the driver's log")
    return None


def _query_error(query: QueryStatus) -> _Finding | None:
    if query.state == "failed":
        if query.error_kind == "checkpoint":
            return _Finding(
                "checkpoint-unwritable",
                f"the query has failed because its checkpoint {query.checkpoint} cannot be used: {query.error}",
                "make the checkpoint writable (rights, free space, mount), then start the query again",
            )
        return _Finding("query-failed", f"the query has failed: {query.error}", "mend that, then start it again")
    if query.watcher_error:
        return _Finding(
            "checkpoint-unreadable",
            f"the driver cannot read the checkpoint, so nothing is acknowledged: {query.watcher_error}",
            "make the checkpoint readable for the driver",
        )
    return None


def _query(status: ReceiverStatus) -> _Finding | None:
    """Why no query reads the receiver."""
    query = status.query
    if status.driver is None and status.running:
        return _Finding(
            "driver-lost",
            "workers run, and no driver holds the lock of the receiver: it has ended, or does not reach the registry",
            "start the driver again",
        )
    if query.state == "none":
        return _Finding(
            "query-not-started",
            "the receiver has started no query, so workers accept no connector",
            "receiver.start_query(rows.writeStream…, checkpoint=…) starts one, and .start() of Spark alone does not",
        )
    if query.state == "stopped":
        return _Finding("query-stopped", "the query was stopped", "start it again with receiver.start_query")
    if query.state == "starting":
        return _Finding("query-starting", "the query is being started")
    if status.driver_error:
        return _Finding("driver-error", f"the driver's last round has failed: {status.driver_error}")
    return None


def _phase(status: ReceiverStatus) -> tuple[str, float]:
    """The phase of the batch under way, as a verb phrase, and how long it has lasted; empty without a batch."""
    query = status.query
    if query.batch is None or query.phase not in _VERBS:
        return "", 0.0
    return query.phase, max(0.0, status.time - query.since) if query.since is not None else 0.0


_VERBS = {
    "reading": "has been reading for",
    "writing": "has been in the query and its sink for",
}


def _batch(status: ReceiverStatus) -> _Finding | None:
    """The batch under way as a cause; None between batches."""
    phase, seconds = _phase(status)
    if not phase:
        return None
    text = f"batch {status.query.batch} {_VERBS[phase]} {seconds_text(seconds)}"
    missing = sum(slot.read.missing for slot in status.slots if slot.read is not None)
    if phase == "reading" and missing and seconds >= SLOW_SECONDS:
        return _Finding(
            "resend-awaited",
            f"{text}; {missing:,} of its ranges have to be sent again by their connectors",
            "start the connectors that are missing; after replayTimeout the batch fails with the names of the streams",
        )
    if seconds >= SLOW_SECONDS:
        return _Finding("sink-slow", text, "look at the query's sink and at Spark's UI", seconds < LONG_SECONDS)
    return _Finding("batch-running", text)


def _slow_batch(status: ReceiverStatus) -> _Finding | None:
    found = _batch(status)
    return found if found is not None and found.code != "batch-running" else None


def _held_up(status: ReceiverStatus) -> _Finding | None:
    """The reason why held rows are not committed, common to all parts; None when there is none."""
    return _outside_of_rows(status) or _worst_slot(status) or _query(status) or _batch(status)


def _outside_of_rows(status: ReceiverStatus) -> _Finding | None:
    return None if status.running else _outside(status)


def _full(status: ReceiverStatus) -> _Finding | None:
    full = [slot for slot in status.slots if slot.pressure == "hard"]
    if not full:
        return None
    return _Finding(
        "memory-full",
        f"the buffer of slot {full[0].slot} is full, so its connectors are not read",
        "raise memoryBudget, or make the batches faster",
    )


def _refused(status: ReceiverStatus, slots: tuple[SlotStatus, ...]) -> _Finding | None:
    """Connections that were refused lately for a reason that the connector cannot remove by itself."""
    found: list[Refusal] = [
        refusal
        for slot in slots
        for refusal in slot.refusals
        if status.time - refusal.at <= REFUSED_SECONDS and refusal.kind in _FINAL
    ]
    if not found:
        return None
    cookies = [refusal for refusal in found if refusal.kind == "wrong-cookie"]
    last = max(cookies or found, key=lambda refusal: refusal.at)
    ago = seconds_text(max(0.0, status.time - last.at))
    who = f"{last.instance} at {last.peer}" if last.instance else f"a connector at {last.peer}"
    if cookies:
        return _Finding(
            "wrong-cookie",
            f"{who} was refused {ago} ago, because its cookie is wrong",
            "give the connector the cookie of the receiver",
        )
    return _Finding("refused", f"{who} was refused {ago} ago: {last.reason}")


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


def _work(status: ReceiverStatus, rows: int, connectors: int) -> _Finding:
    """The activity of a receiver without a problem."""
    batch = _batch(status)
    if batch is not None and rows:
        return batch
    if rows:
        return _awaits_trigger(status, rows)
    if not connectors:
        return _Finding("no-connector", "no connector is connected")
    quiet = [one.last_frame_age for one in status.instances if one.last_frame_age is not None]
    if not quiet or min(quiet) >= QUIET_SECONDS:
        for_long = f" for {seconds_text(min(quiet))}" if quiet else ""
        return _Finding("no-data", f"no connector has sent anything{for_long}, and all rows are committed")
    return _Finding("flowing", "rows arrive and are committed")


def _awaits_trigger(status: ReceiverStatus, rows: int) -> _Finding:
    trigger = f" (trigger: {status.query.trigger})" if status.query.trigger else ""
    return _Finding("trigger-awaited", f"{rows:,} rows are held, and the next batch has not begun{trigger}")


def _slot(status: ReceiverStatus, slot: SlotStatus, held_up: _Finding | None) -> _Finding:
    absent = _absent(status, slot)
    if absent is not None:
        return absent
    if slot.registry_away:
        return _Finding("registry-away", "its worker does not reach the registry; new sessions are told to come back")
    query = _query_error(status.query) or _query(status)
    if query is not None:
        return query
    if slot.rows and held_up is not None and held_up.code != "batch-running":
        return held_up
    return (
        _full(dataclasses.replace(status, slots=(slot,)))
        or _refused(status, (slot,))
        or _work(
            dataclasses.replace(status, instances=tuple(one for one in status.instances if one.slot == slot.slot)),
            slot.rows,
            slot.sessions + slot.waiting,
        )
    )


def _of_instance(
    status: ReceiverStatus, one: InstanceStatus, slot: SlotStatus | None, held_up: _Finding | None
) -> Cause:
    subject = f"{status.name}/{one.name}"
    found = next(finding for finding in _instance_findings(status, one, slot, held_up) if finding is not None)
    credits = f", credits {max(0, one.credits):,}" if one.state == "streaming" and found.code != "flowing" else ""
    return found.of(subject, credits)


def _instance_findings(
    status: ReceiverStatus, one: InstanceStatus, slot: SlotStatus | None, held_up: _Finding | None
) -> Iterator[_Finding | None]:
    if one.state == "waiting":
        if slot is not None and slot.registry_away:
            yield _Finding("registry-away", "its session begins once the registry answers")
        yield _query_error(status.query) or _query(status)
        yield _Finding("session-pending", "its HELLO is being answered")
    if one.rows:
        yield held_up
        if one.state == "gone":
            yield _Finding("connector-gone", f"it is not connected, and {one.rows:,} rows of it are held")
        yield _awaits_trigger(status, one.rows)
    if one.paused:
        yield _Finding("memory-full", "the worker's buffer is full, so this connector is not read")
    if one.credits <= 0 and one.state == "streaming":
        yield held_up or _Finding("no-credits", "it has used up its credits")
    age = one.last_frame_age
    if age is None or age >= QUIET_SECONDS:
        yield _Finding("no-data", f"it has sent nothing for {seconds_text(age or 0.0)}, and all its rows are committed")
    yield _Finding("flowing", "its rows arrive and are committed")


def _of_stream(
    status: ReceiverStatus, one: StreamStatus, instance: InstanceStatus | None, held_up: _Finding | None
) -> Cause:
    subject = f"{status.name}/{one.instance}/{one.title}"
    if one.state == "resending":
        return _Finding("resend-awaited", "its sender has to send rows again").of(subject)
    if one.rows:
        found = held_up or _awaits_trigger(status, one.rows)
        age = f", its oldest row for {seconds_text(one.ack_age)}" if one.ack_age is not None else ""
        return found.of(subject, age)
    if instance is not None:
        code, text = instance.cause.code, instance.cause.sentence.partition(": ")[2]
        if code not in ("flowing", ""):
            return _Finding(code, text, instance.cause.cure, instance.cause.healthy).of(subject)
    return _Finding("flowing", "all its rows are committed").of(subject)
