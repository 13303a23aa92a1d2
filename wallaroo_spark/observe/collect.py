"""Collects the status of a receiver: asks the registry, the driver's report in it, and all workers at the same time.

Source: ``docs/status.md#where-the-facts-come-from``.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Self

from wallaroo_spark.errors import RegistryError, TransportError
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.observe.causes import with_causes
from wallaroo_spark.observe.faces.records import SCHEMA, record_from_json, record_to_json
from wallaroo_spark.observe.receiver import (
    DOOR_REFUSED,
    DoorStatus,
    InstanceStatus,
    QueryStatus,
    ReceiverStatus,
    SlotStatus,
    StreamStatus,
    Totals,
)
from wallaroo_spark.registry import NO_QUERY, QUERY_STARTS, Lease, Registry, state_served
from wallaroo_spark.runtime.long_jobs import JobRecord

DEATHS_IN_ALL = 100
"""Maximum number of deaths in one report. A choice: with their errors some 50 KiB."""
ERROR_LENGTH = 500
"""Characters of a job's last error. A choice that bounds the report."""


@dataclass(frozen=True)
class DriverReport:
    """The driver's report."""

    at: float
    """When it was made, on the driver's clock, in seconds since 1970 UTC."""
    query: QueryStatus = field(default_factory=QueryStatus)
    jobs: tuple[JobRecord, ...] = ()
    """The jobs of the slots."""
    lag_rows: int | None = None
    """Held rows behind the last planned offset, by Spark's last report on the query."""
    lag_bytes: int | None = None
    """Memory of these rows in bytes."""
    error: str = ""
    """Why the driver's last round has failed; empty when it has not."""
    page: str = ""
    """The address of the status page; empty when there is none."""

    def to_text(self) -> str:
        """The report as text for the registry."""
        return json.dumps({"schema": SCHEMA, **record_to_json(_bounded(self))})


_NO_REPORT = DriverReport(0.0)


def report_of(text: str | None) -> DriverReport | None:
    """The report in a text from the registry; None for no text, and for one that another release has written."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        return record_from_json(DriverReport, value) if value.get("schema") == SCHEMA else None
    except (ValueError, AttributeError):
        return None


def _bounded(report: DriverReport) -> DriverReport:
    """The report with only the newest deaths, when there are very many."""
    newest = sorted((death.at for job in report.jobs for death in job.deaths), reverse=True)[:DEATHS_IN_ALL]
    jobs = (
        dataclasses.replace(job, deaths=tuple(death for death in job.deaths if death.at >= newest[-1]))
        for job in report.jobs
    )
    return dataclasses.replace(report, jobs=tuple(jobs))


ANSWER_SECONDS = 5.0
"""The longest wait for the workers' answers, of all together. A choice: a person waits for them."""
KNOCK_SECONDS = 1.0
"""The longest wait for a worker that did not answer the last request, so that it does not delay every snapshot.

A choice; also the longest wait for a connection that shows whether a silent worker's process still accepts any.
"""
CALLS_AT_ONCE = 64
"""Number of workers that are asked at the same time. A choice: each takes a thread."""
MOST = 100
"""Default number of instances and streams that each worker reports. A choice: some 50 KiB of JSON for each worker."""
RECENT_SECONDS = 60.0
"""Seconds after a worker's death in which its slot counts as lost and not as starting. A choice."""


@dataclass(frozen=True)
class Question:
    """The requested parts of the status."""

    most: int = MOST
    """Maximum number of instances, and of streams, that each worker reports."""
    instance: str = ""
    """The only instance of interest; empty: all."""
    stream: str = ""
    """The name, or the id in decimal digits, of the only stream of interest; empty: all."""
    story: bool = False
    """Whether each worker tells its last events."""


@dataclass(frozen=True)
class ReceiverFacts:
    """The facts about a receiver that are known before its workers are asked."""

    name: str
    workers: int = 0
    """Number of slots; 0 when it is not known."""
    leases: Mapping[int, tuple[Lease, bool]] = field(default_factory=dict)
    """The last lease of each slot, with whether it is live."""
    driver: str | None = None
    """The driver that holds the receiver's lock; None when there is none, or it is not known."""
    query: str = ""
    """The field ``query`` of the fleet's record."""
    token: str = field(default="", repr=False)
    """The token for status requests."""
    report: DriverReport | None = None
    """The driver's report; None when there is none."""
    registry_error: str = ""
    """Why the registry does not answer; empty when it does."""
    warnings: tuple[str, ...] = ()
    """Warnings about settings that the driver knows."""
    standby: str = ""
    """The driver that waits to take over; empty when none does."""

    @property
    def running(self) -> bool:
        """Whether a driver or a worker runs."""
        return self.driver is not None or any(live for _, live in self.leases.values())


class Collector:
    """Asks the workers of one receiver. It keeps their connections from one snapshot to the next; close it in the end.

    ``trust`` is how the workers are verified, None when they speak plain text. Several threads may call it at once.
    """

    def __init__(self, trust: Trust | None = None) -> None:
        self._trust = trust
        self._clients: dict[tuple[str, str], WorkerClient] = {}
        self._silent: set[str] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def status(
        self, facts: ReceiverFacts, question: Question | None = None, seconds: float = ANSWER_SECONDS
    ) -> ReceiverStatus:
        """One snapshot. All workers are asked at once, for at most ``seconds`` together. Raises nothing."""
        asked = question or Question()
        addressed = {
            slot: lease for slot, (lease, live) in facts.leases.items() if lease.flight and (live or facts.running)
        }
        self._forget({(lease.flight, facts.token) for lease in addressed.values()})
        answers = self._ask(addressed, facts, asked, seconds) if addressed else {}
        return with_causes(_put_together(facts, answers, time.time()))

    def _ask(
        self, addressed: Mapping[int, Lease], facts: ReceiverFacts, asked: Question, seconds: float
    ) -> dict[int, dict[str, Any] | TransportError]:
        until = time.monotonic() + seconds
        pool = ThreadPoolExecutor(min(CALLS_AT_ONCE, len(addressed)), "wallaroo-status")
        try:
            calls: dict[Future[dict[str, Any] | TransportError], int] = {
                pool.submit(self._answer, lease.flight, facts.token, asked, until): slot
                for slot, lease in addressed.items()
            }
            # A call has a limit of its own; the additional second is for its return.
            done, _ = wait(calls, max(0.0, until + 1.0 - time.monotonic()))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        late = TransportError(f"it was not asked within {seconds:g} s", code="worker-unreachable", reason="late")
        return {slot: call.result() if call in done and not call.cancelled() else late for call, slot in calls.items()}

    def _answer(self, address: str, token: str, asked: Question, until: float) -> dict[str, Any] | TransportError:
        """The answer of a worker, or why there is none."""
        with self._lock:
            client = self._clients.get((address, token))
            if client is None:
                client = self._clients[address, token] = WorkerClient(address, token, ANSWER_SECONDS, self._trust)
            silent = address in self._silent
        left = max(0.1, until - time.monotonic())
        try:
            answer = client.inspect(
                asked.most, asked.instance, asked.stream, min(left, KNOCK_SECONDS) if silent else left
            )
            if asked.story:
                answer["story"] = client.story()
        except TransportError as error:
            if error.fields.get("reason") != "timeout":
                return error
            with self._lock:
                self._silent.add(address)
            cut = f"{error.message}; no connection to it can be made"
            return error if _accepts(address) else TransportError(cut, code="worker-unreachable", reason="cut")
        except Exception as error:
            return TransportError(f"asking it has failed: {error!r}", code="worker-unreachable")
        with self._lock:
            self._silent.discard(address)
        return answer

    def _forget(self, wanted: set[tuple[str, str]]) -> None:
        """Close the connections to workers that are not part of the fleet any more."""
        with self._lock:
            gone = [self._clients.pop(key) for key in self._clients.keys() - wanted]
            self._silent &= {address for address, _ in wanted}
        for client in gone:
            client.close()


def _accepts(address: str) -> bool:
    """Whether a connection can be made, which the kernel accepts also for a process that is stopped."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


class RegistryCollector:
    """Collects the status of a receiver from its registry, for a program that is not the driver.

    While the registry does not answer, the last known workers are still asked. ``trust`` is as for :class:`Collector`.
    The registry stays the caller's.
    """

    def __init__(self, registry: Registry, receiver: str, trust: Trust | None = None) -> None:
        self._registry = registry
        self._known = ReceiverFacts(receiver)
        self._workers = Collector(trust)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()

    def status(self, question: Question | None = None, seconds: float = ANSWER_SECONDS) -> ReceiverStatus:
        """One snapshot. Raises nothing: a registry that does not answer is the snapshot's ``registry_error``."""
        try:
            self._known = facts_of(self._registry, self._known.name)
        except RegistryError as error:
            self._known = dataclasses.replace(self._known, registry_error=error.message)
        return self._workers.status(self._known, question, seconds)


def facts_of(registry: Registry, receiver: str) -> ReceiverFacts:
    """Return the registry's records of a receiver. Raises :class:`RegistryError` when the registry does not answer."""
    fleet = registry.fleet()
    workers = fleet.get("workers", "0")
    return ReceiverFacts(
        receiver,
        int(workers) if workers.isdecimal() else 0,
        registry.known_leases(),
        registry.locked_by("receiver"),
        fleet.get("query", ""),
        fleet.get("status_token", ""),
        report_of(registry.report()),
        standby=registry.locked_by("standby") or "",
    )


def _put_together(
    facts: ReceiverFacts, answers: Mapping[int, dict[str, Any] | TransportError], now: float
) -> ReceiverStatus:
    report = facts.report or _NO_REPORT
    jobs = {job.slot: job for job in report.jobs}
    count = max([facts.workers, *(slot + 1 for slot, (_, live) in facts.leases.items() if live)])
    slots: list[SlotStatus] = []
    doors: list[DoorStatus] = []
    instances: list[InstanceStatus] = []
    streams: list[StreamStatus] = []
    for number in range(count) if facts.running or facts.registry_error else ():
        answer = answers.get(number)
        slots.append(_slot(number, facts, jobs.get(number), answer, now))
        if isinstance(answer, dict):
            doors += (found := doors_of(number, answer))
            instances += instances_of(number, answer, now, found)
            streams += streams_of(number, answer)
    query = _query(facts.query, report.query, slots)
    instances.sort(key=lambda one: (one.ack_age or -1.0, one.rows), reverse=True)
    streams.sort(key=lambda one: (one.ack_age or -1.0, one.rows), reverse=True)
    warnings = dict.fromkeys([*facts.warnings, *(warning for slot in slots for warning in slot.warnings)])
    return ReceiverStatus(
        facts.name,
        now,
        facts.running,
        facts.driver,
        None if facts.report is None else max(0.0, now - report.at),
        facts.registry_error,
        report.error,
        report.page,
        query,
        tuple(slots),
        tuple(instances),
        tuple(streams),
        tuple(doors),
        _totals(slots, report, streams),
        warnings=tuple(warnings),
        standby=facts.standby,
    )


def _slot(
    number: int, facts: ReceiverFacts, job: JobRecord | None, answer: dict[str, Any] | TransportError | None, now: float
) -> SlotStatus:
    lease, live = facts.leases.get(number, (None, False))
    known: dict[str, Any] = {"state": _unanswered(lease, live, job, answer, now)}
    if lease is not None:
        known |= {"holder": lease.holder, "address": lease.connect, "inner_address": lease.flight}
        known |= {"generation": lease.generation, "submission": lease.submission, "lease_expired": not live}
    if job is not None:
        known |= {name: getattr(job, name) for name in ("submissions", "died", "deaths", "last_error")}
    if isinstance(answer, TransportError):
        known["error"] = answer.message
    slot = SlotStatus(number, **known)
    if not isinstance(answer, dict):
        return slot
    slot = slot_of(slot, answer, now)
    return dataclasses.replace(slot, state="stopping" if slot.stopping else state_served(slot.ready, facts.query))


def _unanswered(
    lease: Lease | None,
    live: bool,
    job: JobRecord | None,
    answer: dict[str, Any] | TransportError | None,
    now: float,
) -> str:
    """The state of a slot whose worker does not answer."""
    dead = bool(job is not None and job.deaths and now - job.deaths[-1].at < RECENT_SECONDS)
    if isinstance(answer, TransportError):
        if answer.fields.get("reason") == "timeout":
            return "frozen"
        replaced = job is not None and (not job.running or (lease is not None and job.submission != lease.submission))
        return "lost" if not live or replaced else "unreachable"
    if lease is not None and live:
        return "lost" if dead else "starting"
    if job is None or not job.submissions:
        return "vacant"
    # A job that has never ended is about to run for the first time.
    return "lost" if dead or (not job.running and (job.died or job.last_error)) else "starting"


_STATES: dict[str, str] = {NO_QUERY: "none", QUERY_STARTS: "starting"}


def _query(recorded: str, query: QueryStatus, slots: list[SlotStatus]) -> QueryStatus:
    """The query by the driver's report, and by the fleet's record where there is no report."""
    if query.state == "unknown":
        state = _STATES.get(recorded, "running" if recorded else "unknown")
        return QueryStatus(state, id=recorded if state == "running" else "")
    if query.phase == "writing" and any(slot.read is not None and slot.read.missing for slot in slots):
        return dataclasses.replace(query, phase="reading")
    return query


_SUMMED = ("sessions", "waiting", "instances", "streams", "rows", "credits", "rows_in", "died")
"""The totals that are sums of the figures of slots with the same name."""


def _totals(slots: list[SlotStatus], report: DriverReport, streams: list[StreamStatus]) -> Totals:
    all_known = len(streams) == sum(slot.streams for slot in slots)
    faults = (count for slot in slots for name, count in slot.counts.items() if name.startswith("fault:"))
    return Totals(
        slots=len(slots),
        serving=sum(slot.state == "serving" for slot in slots),
        bytes=sum(slot.memory_used for slot in slots),
        budget=sum(slot.memory_budget for slot in slots),
        # Exact where all streams are known, else by Spark's last report.
        lag_rows=sum(stream.lag_rows for stream in streams) if all_known else report.lag_rows,
        lag_bytes=report.lag_bytes,
        ack_age=max((slot.ack_age for slot in slots if slot.ack_age is not None), default=None),
        faults=sum(faults),
        **{name: sum(getattr(slot, name) for slot in slots) for name in _SUMMED},
    )


def slot_of(known: SlotStatus, answer: Mapping[str, Any], now: float) -> SlotStatus:
    """Add a worker's answer, received at ``now``, to the known state of its slot. It has the names of the record."""
    refusals = [{**one, "at": now - float(one.get("age", 0.0))} for one in answer.get("refusals", ())]
    said = {name: value for name, value in answer.items() if name in _OF_WORKERS and value not in (None, "")}
    found = record_from_json(SlotStatus, {**said, "slot": known.slot, "state": known.state, "refusals": refusals})
    return dataclasses.replace(known, **{name: getattr(found, name) for name in said | {"refusals": ()}})


_OF_DRIVERS = frozenset(["slot", "state", "generation", "submission", "submissions", "died", "deaths", "cause"])
_OF_WORKERS = frozenset(one.name for one in dataclasses.fields(SlotStatus)) - _OF_DRIVERS
"""The figures of a slot that its worker knows."""


def doors_of(slot: int, answer: Mapping[str, Any]) -> list[DoorStatus]:
    """The doors of an answer."""
    ages, counts = (answer.get(name, {}) for name in ("door_ages", "counts"))
    doors = answer.get("door_list", ())
    refusals: Counter[str] = Counter()
    for name, number in counts.items():
        if name.startswith(DOOR_REFUSED):
            door, _, _ = name.removeprefix(DOOR_REFUSED).partition("-")
            # The HTTP door takes OTLP's requests, too, where that has no door of its own.
            refusals[door if door != "otlp" or any(one["door"] == door for one in doors) else "http"] += number
    found = []
    for one in doors:
        values = {**one, "slot": slot, "oldest": ages.get(one["door"])}
        found.append(record_from_json(DoorStatus, {**values, "refused": refusals[one["door"]]}))
    return found


def instances_of(
    slot: int, answer: Mapping[str, Any], now: float, doors: Iterable[DoorStatus] = ()
) -> list[InstanceStatus]:
    """The instances of an answer, in its order; ``doors`` are the slot's."""
    requests = {name: number for door in doors for name, number in door.waiting_by.items()}
    return [
        record_from_json(
            InstanceStatus,
            {
                **one,
                "slot": slot,
                "since": now - float(one["age"]) if "age" in one else None,
                "requests": requests.get(one["name"], 0),
            },
        )
        for one in answer.get("instance_list", ())
    ]


def streams_of(slot: int, answer: Mapping[str, Any]) -> list[StreamStatus]:
    """The streams of an answer, in its order."""
    return [record_from_json(StreamStatus, {**one, "slot": slot}) for one in answer.get("stream_list", ())]
