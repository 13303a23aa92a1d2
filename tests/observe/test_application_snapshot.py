"""The snapshot of an application: gauges of batches added up, and the cause of a wait."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.observe.application_samples import NOW, base, gauges, queue, status
from wallaroo_spark.codes import ENTRIES, titles
from wallaroo_spark.observe.application import ApplicationStatus, GatewayStatus
from wallaroo_spark.observe.faces.records import record_from_json, record_to_json
from wallaroo_spark.observe.published import GaugeSum
from wallaroo_spark.observe.receiver import QueryStatus

BEGUN = {"began": 5}
DONE = {"done": 2, "failed": 1, "dead_letters": 1, "failed_at": NOW - 3, "done_at": NOW - 3, "reason": "no stock"}


def test_a_snapshot_has_the_newest_state_and_the_counts_of_all_batches() -> None:
    found = status(
        gauges(NOW - 9, 5, did=BEGUN, charge=queue(waiting=5), reserve=queue(done=5)),
        gauges(NOW - 3, 9, cursor=6, did=DONE, charge=queue(waiting=2, running=1, members=1, done=2)),
    )

    orders, empty, shipments = found.partitions
    assert (orders.last, shipments.last, empty.groups) == (9, 0, ())
    [audit] = orders.groups
    assert (audit.cursor, audit.lag, audit.attempts, audit.oldest) == (5, 4, 2, 3.0)
    [fulfil] = found.pipelines
    assert (fulfil.active, fulfil.lag, fulfil.began, fulfil.done, fulfil.failed, fulfil.dead_letters) == (
        3,
        3,
        5,
        2,
        1,
        1,
    )
    charge, reserve, ship = fulfil.stages
    assert (charge.waiting, charge.running, charge.members, charge.done, charge.oldest) == (2, 1, 1, 2, 12.0)
    assert (reserve.in_spark, reserve.done, ship.after) == (True, 5, ("charge", "reserve"))
    assert record_from_json(ApplicationStatus, json.loads(json.dumps(record_to_json(found)))) == found


def test_a_batch_counts_once_and_the_sum_goes_on_from_its_file() -> None:
    total = GaugeSum()
    first = gauges(NOW, 5, did=BEGUN, reserve=queue(done=5))
    first["partition"]["records"] = 5
    for _ in range(2):
        total.add(0, {"shop/orders/0": first})
    again = GaugeSum.from_json(json.loads(json.dumps(total.to_json())))
    again.add(1, {"shop/orders/0": gauges(NOW, 5, did=DONE, charge=queue(done=2))})

    assert total.keys["shop/orders/0"].partition.records == 5
    assert again.keys["shop/orders/0"].partition.records == 5
    [fulfil] = again.keys["shop/orders/0"].pipelines
    assert (fulfil.began, fulfil.done, fulfil.failed, fulfil.dead_letters) == (5, 2, 1, 1)
    assert {stage.stage: stage.done for stage in fulfil.stages} == {"reserve": 5, "charge": 2}
    assert GaugeSum.from_json({"format": 99}).batch == -1
    again.forget({"shop/other/0"})
    assert again.keys == {}


def test_a_stage_without_a_member_is_known_with_its_begin_until_a_member_joins() -> None:
    first, second = gauges(NOW - 90, 1, charge=queue(waiting=1)), gauges(NOW - 20, 2, charge=queue(waiting=2))
    waiting = status(first, second)
    served = status(first, second, gauges(NOW - 5, 2, charge=queue(waiting=1, running=1, members=1)))

    assert waiting.pipelines[0].stages[0].unserved_since == NOW - 90
    assert waiting.cause.code == "stage-without-member"
    assert waiting.cause.sentence == (
        "shop: stage charge of shop/fulfil has had no member for 90 s, and 2 deliveries wait for one"
    )
    assert "wallaroo-spark stage shop/fulfil charge" in waiting.cause.cure
    assert served.pipelines[0].stages[0].unserved_since is None
    assert served.cause.code == "application-flowing"
    assert status(second).cause.code == "application-flowing"


def test_the_concurrency_of_the_members_is_named_when_it_is_the_limit() -> None:
    one = status(gauges(NOW, 9, charge=queue(waiting=5, running=1, members=1, places=1)))
    many = status(
        gauges(
            NOW,
            90,
            charge=queue(waiting=50, running=8, members=2, places=8),
            ship=queue(waiting=3, running=1, members=1, places=1),
        )
    )
    enough = status(gauges(NOW, 9, charge=queue(waiting=4, running=4, members=1, places=4)))

    assert (one.cause.code, one.cause.healthy) == ("members-full", True)
    assert one.cause.sentence == (
        "shop: stage charge of shop/fulfil: the only member works on one at a time, and 5 deliveries wait"
    )
    assert "concurrency" in one.cause.cure
    assert "its members work on 8 at once, and 50 deliveries wait" in many.cause.sentence
    assert enough.cause.code == "application-flowing"


def test_members_that_have_not_ended_what_was_taken_away_are_named_when_work_waits() -> None:
    hung = status(gauges(NOW, 9, charge=queue(waiting=5, running=2, members=1, places=2, overdue=2)))
    works = status(gauges(NOW, 9, charge=queue(waiting=5, running=2, members=1, places=2, overdue=1)))

    assert (hung.cause.code, hung.cause.healthy) == ("members-hang", False)
    assert "have not ended 2 deliveries that were taken away from them, and 5 deliveries wait" in hung.cause.sentence
    assert (works.cause.code, works.pipelines[0].stages[0].overdue) == ("members-full", 1)


def test_a_group_that_is_paused_idle_or_fails_is_known() -> None:
    found = gauges(NOW, 9)
    found["partition"]["groups"][0] |= {"paused": True, "idle_since": NOW, "overdue": 1, "reason": "no ledger"}
    found["partition"]["groups"][0] |= {"letters_refused": 2, "refused_reason": "it is gone"}
    [audit] = status(found).partitions[0].groups

    assert (audit.paused, audit.idle_since, audit.overdue, audit.reason) == (True, NOW, 1, "no ledger")
    assert (audit.letters_refused, audit.refused_reason) == (2, "it is gone")


NACKED = queue(retrying=1, failed=1, failing_since=NOW - 40, failed_at=NOW - 1, attempts=3, reason="no ledger")


def test_a_stage_that_fails_for_ever_is_named_with_its_last_reason() -> None:
    found = status(gauges(NOW - 1, 1, reserve=NACKED))

    stage = found.pipelines[0].stages[1]
    assert (stage.failed, stage.retrying, stage.failing, stage.reason) == (1, 1, 40.0, "no ledger")
    assert (found.cause.code, found.cause.healthy) == ("stage-failing", False)
    assert found.cause.sentence == (
        "shop: stage reserve of shop/fulfil has failed 3 times in 40 s for one instance, 1 delivery waits for the next "
        "attempt; the last reason: no ledger"
    )
    assert "wallaroo-spark pipelines instances shop/fulfil" in found.cause.cure


def test_a_stage_counts_as_failing_until_its_delivery_succeeds_or_ends() -> None:
    failing = gauges(NOW - 9, 1, reserve=NACKED)
    waits = gauges(NOW - 5, 2, reserve=queue(retrying=1, done=1))
    once = gauges(NOW - 4, 3, reserve=queue(retrying=2, failed=1, failing_since=NOW - 4, failed_at=NOW - 4, attempts=1))
    done = gauges(NOW - 3, 3, reserve=queue(done=1))
    ended = gauges(NOW - 3, 3)

    assert status(failing, waits, once).cause.code == "stage-failing"
    assert status(failing, waits, once).pipelines[0].stages[1].failed == 2
    assert {"stage-failing"} & {one.code for one in status(failing, waits, done).causes} == set()
    assert {"stage-failing"} & {one.code for one in status(failing, ended).causes} == set()
    assert {"stage-failing"} & {one.code for one in status(once).causes} == set()


def test_an_attempt_that_runs_outside_spark_does_not_hide_that_the_one_before_has_failed() -> None:
    nacked = gauges(NOW - 9, 1, charge={**NACKED, "members": 1, "places": 1})
    again = gauges(NOW - 5, 1, charge=queue(running=1, members=1, places=1))

    assert status(nacked, again).cause.code == "stage-failing"


def test_a_group_whose_events_fail_again_and_again_is_named() -> None:
    found = gauges(NOW - 30, 9)
    found["partition"]["groups"][0] |= {"attempts": 4, "reason": "no ledger"}
    cause = status(found).cause

    assert (cause.code, cause.healthy) == ("group-failing", False)
    assert "group audit has tried the events behind offset 5 of partition 0 of shop/orders 4 times" in cause.sentence


@pytest.mark.parametrize("others", [True, False])
def test_failed_instances_and_refused_tokens_are_causes_and_troubles_where_nothing_else_works(others: bool) -> None:
    ended = {"failed": 2, "failed_at": NOW - 20, "reason": "no stock", "done_at": NOW - 9 if others else None}
    gateway = GatewayStatus(
        "g0", "serving", "node:7300", age=0.5, members=int(others), refused_age=3.0, refused_reason="it has expired"
    )
    found = {one.code: one for one in status(gauges(NOW - 9, 2, did=ended), gateways=(gateway,)).causes}

    assert found["instances-failed"].sentence == (
        "shop: an instance of shop/fulfil has failed 20 s ago, 2 in all: no stock"
    )
    assert found["clients-refused"].sentence == "shop: gateway g0 has refused a client 3.0 s ago: it has expired"
    assert {one.healthy for one in found.values()} == {others}


FAILED = QueryStatus("failed", error="no space left on device")
STUCK = QueryStatus("running", committed_batch=7, batch=8, phase="writing", since=NOW - 100)
LATE = GatewayStatus("g0", "serving", "node:7300", age=0.5, requests=3, oldest_request=45.0)
DOWN = GatewayStatus("g1", "down", submissions=3, last_error="Executor lost")


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"query": FAILED}, "query-failed", "no space left on device"),
        ({"running": False}, "application-not-running", "no driver runs it"),
        ({"registry_error": "Redis is away"}, "registry-away", "Redis is away"),
        ({"round_age": 7.0}, "driver-slow", "the driver has done nothing for 7.0 s"),
        ({"gateways": (*base().gateways, DOWN)}, "gateway-not-served", "1 of 2 gateways do not serve (g1); its"),
        ({"query": QueryStatus("starting")}, "query-starting", "the query starts"),
        ({"query": QueryStatus("stopped")}, "query-stopped", "was stopped"),
        ({"query": STUCK}, "query-stuck", "batch 8 has run for 100 s"),
        ({"gateways": (LATE,)}, "query-stuck", "a call has waited for its commit for 45 s"),
        ({"errors": ("files cannot be moved",)}, "application-error", "files cannot be moved"),
        ({}, "application-idle", "everything that has come is done"),
    ],
)  # fmt: skip
def test_each_cause_has_its_sentence(fields: dict[str, object], code: str, text: str) -> None:
    found = status(**fields).cause

    assert found.code == code
    assert text in found.sentence
    assert found.healthy == (code in ("application-idle", "query-starting"))
    assert bool(found.cure) != found.healthy
    assert code in ENTRIES


def test_every_code_of_the_group_is_a_cause() -> None:
    flowing = status(gauges(NOW, 3, cursor=1)).cause.code
    unserved = status(gauges(NOW - 70, 3, charge=queue(waiting=1))).cause.code

    full = status(gauges(NOW, 9, charge=queue(waiting=5, running=1, members=1, places=1))).cause.code
    hung = status(gauges(NOW, 9, charge=queue(waiting=5, running=1, members=1, places=1, overdue=1))).cause.code

    assert {flowing, unserved, full, hung} <= titles("application-causes").keys()
    assert dataclasses.asdict(base())["application"] == "shop"
