"""A status is put together from the registry, the driver's report and the workers' answers; nothing in it raises."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from wallaroo_spark.errors import RegistryError, TransportError
from wallaroo_spark.observe import collect
from wallaroo_spark.observe.collect import (
    KNOCK_SECONDS,
    Collector,
    DriverReport,
    Question,
    ReceiverFacts,
    RegistryCollector,
    doors_of,
)
from wallaroo_spark.observe.receiver import DoorStatus, QueryStatus, ReceiverStatus
from wallaroo_spark.registry import NO_QUERY, Lease
from wallaroo_spark.runtime.long_jobs import Death, JobRecord

Answer = dict[str, Any] | Exception
SILENT = TransportError("it is silent", reason="timeout")
REFUSED = TransportError("connection refused", reason="cut")


def lease(slot: int, submission: int = 1) -> Lease:
    return Lease(slot, submission, 5, f"holder-{slot}", f"h:70{slot}", f"127.0.0.1:{slot + 1}")


def worker(**fields: Any) -> dict[str, Any]:
    return {"ready": True, "pid": 7, "host": "node-1", **fields}


class Client:
    """A worker's client that answers from :attr:`answers`, by address."""

    answers: ClassVar[dict[str, Answer]] = {}
    limits: ClassVar[list[float]] = []
    closed: ClassVar[list[str]] = []

    def __init__(self, address: str, *_: object) -> None:
        self.address = address

    def inspect(self, most: int, instance: str, stream: str, limit: float) -> dict[str, Any]:
        Client.limits.append(limit)
        found = Client.answers[self.address]
        if isinstance(found, Exception):
            raise found
        return dict(found)

    def close(self) -> None:
        Client.closed.append(self.address)


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> None:
    Client.answers, Client.limits, Client.closed = {}, [], []
    monkeypatch.setattr(collect, "WorkerClient", Client)
    monkeypatch.setattr(collect, "_accepts", lambda address: True)


def facts(*leases: tuple[Lease, bool], jobs: tuple[JobRecord, ...] = (), **fields: Any) -> ReceiverFacts:
    report = DriverReport(time.time(), QueryStatus("running"), jobs)
    known: dict[str, Any] = {"driver": "driver", "query": "a query", "report": report, **fields}
    return ReceiverFacts("orders", max(1, len(leases)), {one.slot: (one, live) for one, live in leases}, **known)


def status(known: ReceiverFacts, *answers: Answer) -> ReceiverStatus:
    Client.answers = {f"127.0.0.1:{slot + 1}": answer for slot, answer in enumerate(answers)}
    with Collector() as collector:
        return collector.status(known, Question())


def died() -> JobRecord:
    """The job of a slot whose worker has just died."""
    return JobRecord(0, True, 1, 1, 1, (Death(time.time(), 1, "it was killed"),), "it was killed")


@pytest.mark.parametrize(
    ("known", "answer", "state"),
    [
        (lambda: facts((lease(0), True)), worker(), "serving"),
        (lambda: facts((lease(0), True), query=NO_QUERY), worker(), "waiting"),
        (lambda: facts((lease(0), True)), worker(ready=False), "waiting"),
        (lambda: facts((lease(0), True)), worker(stopping="the receiver stops"), "stopping"),
        (lambda: facts((lease(0), True)), SILENT, "frozen"),
        (lambda: facts((lease(0), True)), REFUSED, "unreachable"),
        (lambda: facts((lease(0), False)), REFUSED, "lost"),
        (lambda: facts((lease(0), True), jobs=(JobRecord(0, True, 2, 2),)), REFUSED, "lost"),
        (lambda: facts((lease(0), True), jobs=(JobRecord(0, False, 1, 1),)), REFUSED, "lost"),
        (facts, worker(), "vacant"),
        (lambda: facts(jobs=(JobRecord(0, True, 1, 1),)), worker(), "starting"),
        (lambda: facts(jobs=(JobRecord(0, False, 1, 1),)), worker(), "starting"),
        (lambda: facts(jobs=(JobRecord(0, False, 1, 1, last_error="no more contexts"),)), worker(), "lost"),
        (lambda: facts(jobs=(died(),)), worker(), "lost"),
        (lambda: facts((lease(0), True)), RuntimeError("a defect"), "unreachable"),
    ],
)
def test_a_slot_has_a_state_whatever_its_worker_answers(
    known: Callable[[], ReceiverFacts], answer: Answer, state: str
) -> None:
    (slot,) = status(known(), answer).slots

    assert slot.state == state
    if isinstance(answer, RuntimeError):
        assert slot.error == "asking it has failed: RuntimeError('a defect')"


def test_all_workers_make_one_status_with_the_longest_waits_first() -> None:
    def shop(name: str, age: float | None, rows: int) -> dict[str, Any]:
        one = {"instance": name, "scope": name, "stream_id": "1", "name": "s", "rows": rows, "lag_rows": rows}
        return worker(
            rows=rows,
            streams=1,
            sessions=1,
            ack_age=age,
            counts={"fault:wrong-cookie": 2},
            instance_list=[{"name": name, "state": "streaming", "rows": rows, "ack_age": age}],
            stream_list=[{**one, "ack_age": age}],
        )

    known = facts((lease(0), True), (lease(1), True), (lease(2), True))
    found = status(known, shop("a", 1.0, 5), shop("b", 3.0, 1), shop("c", None, 0))

    assert [one.name for one in found.instances] == [one.instance for one in found.streams] == ["b", "a", "c"]
    totals = found.totals
    assert (totals.slots, totals.serving, totals.sessions, totals.rows, totals.lag_rows) == (3, 3, 3, 6, 6)
    assert (totals.ack_age, totals.faults) == (3.0, 6)


def test_the_lag_is_that_of_sparks_report_where_not_all_streams_are_known() -> None:
    report = DriverReport(time.time(), QueryStatus("running"), lag_rows=70, lag_bytes=900)
    found = status(facts((lease(0), True), report=report), worker(streams=5_000, stream_list=[]))

    assert (found.totals.lag_rows, found.totals.lag_bytes) == (70, 900)


def test_a_worker_that_has_not_answered_does_not_hold_up_the_next_looks() -> None:
    known = facts((lease(0), True))
    Client.answers = {"127.0.0.1:1": SILENT}
    with Collector() as collector:
        for _ in range(2):
            assert collector.status(known).cause.code == "worker-frozen"
        Client.answers = {"127.0.0.1:1": worker()}
        for _ in range(2):
            collector.status(known)

    first, knock, again, after = Client.limits
    assert knock <= KNOCK_SECONDS < first
    assert again <= KNOCK_SECONDS < after


def test_the_connection_to_a_worker_that_was_replaced_is_closed() -> None:
    Client.answers = {"127.0.0.1:1": worker(), "127.0.0.1:2": worker()}
    with Collector() as collector:
        collector.status(facts((lease(0), True), (lease(1), True)))
        collector.status(facts((lease(1), True)))
        assert Client.closed == ["127.0.0.1:1"]
    assert Client.closed == ["127.0.0.1:1", "127.0.0.1:2"]


def test_while_the_registry_is_away_the_last_known_workers_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    Client.answers = {"127.0.0.1:1": worker()}
    known = facts((lease(0), True))

    def away(*_: object) -> ReceiverFacts:
        raise RegistryError("Redis is away; start it")

    registry: Any = None
    with RegistryCollector(registry, "orders") as collector:
        monkeypatch.setattr(collect, "facts_of", lambda *_: known)
        assert collector.status().cause.code != "registry-away"
        monkeypatch.setattr(collect, "facts_of", away)
        found = collector.status()

    assert (found.cause.code, found.registry_error) == ("registry-away", "Redis is away; start it")
    assert [slot.state for slot in found.slots] == ["serving"]


def test_a_receiver_that_nobody_runs_has_no_slots() -> None:
    found = status(ReceiverFacts("orders", 3))

    assert (found.running, found.slots, found.cause.code) == (False, (), "not-running")


def test_doors_are_put_together_from_their_addresses_the_ages_of_the_buffer_and_the_counts_by_code() -> None:
    found = status(
        facts((lease(0), True)),
        worker(
            door_list=[
                {"door": "kafka", "address": "h:9092", "ports": [9092, 9093], "connections": 3, "clients": 2,
                 "waiting": 5, "waiting_by": {"kafka/billing/0": 5}}
            ],
            door_ages={"kafka": 3.5},
            counts={"door-refused:kafka-malformed": 2, "door-refused:kafka-full": 1, "door-refused:http-full": 7},
            instance_list=[{"name": "kafka/billing/0", "state": "streaming", "rows": 5}],
        ),
    )  # fmt: skip

    assert found.doors == (DoorStatus(0, "kafka", "h:9092", (9092, 9093), 3, 2, 5, 3.5, 3, {"kafka/billing/0": 5}),)
    assert found.instances[0].requests == 5


def test_refusals_of_otlp_count_at_the_http_door_where_it_has_no_door_of_its_own() -> None:
    def refused(*doors: str) -> dict[str, int]:
        counts = {"door-refused:otlp-full": 2, "door-refused:http-full": 1}
        found = doors_of(0, {"door_list": [{"door": name} for name in doors], "counts": counts})
        return {one.door: one.refused for one in found}

    assert refused("http") == {"http": 3}
    assert refused("http", "otlp") == {"http": 1, "otlp": 2}
