"""The snapshot of an application: gauges of batches added up, and the cause of a wait."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.status.application.samples import NOW, base, gauges, queue, status
from wallaroo_spark.codes import ENTRIES
from wallaroo_spark.status import QueryStatus
from wallaroo_spark.status.application.cause import CODES
from wallaroo_spark.status.application.gauges import GaugeSum
from wallaroo_spark.status.application.model import ApplicationStatus, GatewayStatus
from wallaroo_spark.status.schema import record_from_json, record_to_json

BEGUN = {"records": 5, "pipelines": {"shop/fulfil": {"began": 5, "stages": {"reserve": 5}}}}
DONE = {"pipelines": {"shop/fulfil": {"done": 2, "failed": 1, "dead_letters": 1, "stages": {"charge": 2}}}}


def test_a_snapshot_has_the_newest_state_and_the_counts_of_all_batches() -> None:
    found = status(
        gauges(NOW - 9, 5, did=BEGUN, charge=queue(5)),
        gauges(NOW - 3, 9, cursor=6, did=DONE, charge=queue(2, 1, 1)),
    )

    orders, empty, shipments = found.partitions
    assert (orders.last, orders.records, shipments.last, empty.groups) == (9, 5, 0, ())
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
    for _ in range(2):
        total.add(0, {"shop/orders/0": gauges(NOW, 5, did=BEGUN)})
    again = GaugeSum.from_json(json.loads(json.dumps(total.to_json())))
    again.add(1, {"shop/orders/0": gauges(NOW, 5, did=DONE)})

    assert total.records == {"shop/orders/0": 5}
    assert again.pipelines["shop/fulfil"] == {
        "began": 5, "done": 2, "failed": 1, "dead_letters": 1, "stages": {"reserve": 5, "charge": 2},
    }  # fmt: skip
    assert GaugeSum.from_json({"format": 99}).batch == -1
    again.forget({"shop/other/0"})
    assert again.keys == {}


def test_a_stage_without_a_member_is_known_with_its_begin_until_a_member_joins() -> None:
    first, second = gauges(NOW - 90, 1, charge=queue(1)), gauges(NOW - 20, 2, charge=queue(2))
    waiting = status(first, second)
    served = status(first, second, gauges(NOW - 5, 2, charge=queue(1, 1, 1)))

    assert waiting.pipelines[0].stages[0].unserved_since == NOW - 90
    assert waiting.cause.code == "stage-without-member"
    assert waiting.cause.sentence == (
        "shop: stage charge of shop/fulfil has had no member for 90 s, and 2 deliveries wait for one"
    )
    assert "wallaroo-spark stage shop/fulfil charge" in waiting.cause.cure
    assert served.pipelines[0].stages[0].unserved_since is None
    assert served.cause.code == "application-flowing"
    assert status(second).cause.code == "application-flowing"


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
    unserved = status(gauges(NOW - 70, 3, charge=queue(1))).cause.code

    assert {flowing, unserved} <= CODES.keys()
    assert dataclasses.asdict(base())["application"] == "shop"
