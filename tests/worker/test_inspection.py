"""A worker's report on its sessions, instances and streams: bounded, and the worst first."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.worker.bench import Bench
from wallaroo_spark.protocol import Revision
from wallaroo_spark.protocol.revisions import DRAFT_LE, REVISIONS
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.inspection import InspectionQuestion, inspect
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.reads import ReadRequest


def answer(bench: Bench, most: int = 10, requests: list[ReadRequest] | None = None, **wanted: str) -> dict[str, Any]:
    found = inspect(bench.state, requests or [], InspectionQuestion(most, **wanted))
    return dict(json.loads(json.dumps(found)))


def read_of(revision: Revision, end: int) -> ReadRequest:
    scope = "shop-1" if revision.stream_scope == "instance" else ""
    return ReadRequest({0: PlannedRange(StreamKey(scope, 7), None, end)}, time.monotonic(), 1)


@pytest.mark.parametrize("revision", [*REVISIONS.values()], ids=[*REVISIONS])
def test_a_stream_has_its_references_rows_and_lag(revision: Revision) -> None:
    bench = Bench()
    shop = bench.join(revision, "shop-1")
    shop.open(7, name="orders.jsonl")
    shop.messages(7, range(1, 11))
    scope = "shop-1" if revision.stream_scope == "instance" else ""
    bench.do(e.Committed(bench.epoch, 1, {StreamKey(scope, 7): 4}, 0.0))

    found = answer(bench, requests=[read_of(revision, 8)])

    (stream,) = found["stream_list"]
    assert (stream["instance"], stream["scope"], stream["stream_id"], stream["name"]) == (
        "shop-1",
        scope,
        "7",
        "orders.jsonl",
    )
    assert (stream["received"], stream["planned"], stream["committed"]) == ("10", "8", "4")
    assert (stream["rows"], stream["lag_rows"], stream["rows_in"], stream["rows_out"]) == (6, 2, 10, 4)
    assert (found["rows"], found["rows_in"]) == (6, 10)
    (instance,) = found["instance_list"]
    assert (instance["name"], instance["state"], instance["rows"]) == ("shop-1", "streaming", 6)
    assert (found["read"]["ranges"], found["read"]["missing"], found["read"]["done_age"]) == (1, 1, None)


def test_the_streams_whose_rows_wait_longest_and_those_with_most_rows_come_first() -> None:
    bench = Bench()
    shop = bench.join(DRAFT_LE, "shop-1")
    for number in range(100):
        shop.open(number, name=f"s{number}")
    for number in range(90):
        shop.messages(number, range(1, 3 if number == 89 else 2))

    found = answer(bench, most=4)

    assert (found["rows"], len(found["stream_list"])) == (91, 4)
    assert "s89" in [stream["name"] for stream in found["stream_list"]]
    assert len(answer(bench, most=95)["stream_list"]) == 95
    assert answer(bench, most=0)["stream_list"] == []


def test_one_stream_or_instance_is_found_among_many() -> None:
    bench = Bench()
    for name in ("shop-1", "shop-2"):
        shop = bench.join(DRAFT_LE, name)
        for number in range(20):
            shop.open(number, name=f"s{number}")

    by_name = answer(bench, most=50, stream="s3")["stream_list"]
    by_both = answer(bench, most=50, stream="5", instance="shop-2")

    assert [(one["instance"], one["name"]) for one in by_name] == [("shop-1", "s3"), ("shop-2", "s3")]
    assert [(one["instance"], one["name"]) for one in by_both["stream_list"]] == [("shop-2", "s5")]
    assert [one["name"] for one in by_both["instance_list"]] == ["shop-2"]


def test_rows_of_a_connector_that_has_left_are_those_of_an_instance_that_is_gone() -> None:
    bench = Bench()
    shop = bench.join(DRAFT_LE, "shop-1")
    shop.open(7)
    shop.messages(7, [1, 2])
    shop.leave()

    found = answer(bench)

    (instance,) = found["instance_list"]
    assert (instance["name"], instance["state"], instance["rows"]) == ("shop-1", "gone", 2)
    assert [stream["state"] for stream in found["stream_list"]] == ["left"]


def test_refused_connections_are_remembered_and_bounded() -> None:
    bench = Bench()
    for _ in range(20):
        bench.connect(DRAFT_LE, "thief").hello(cookie="no")

    refusals = answer(bench)["refusals"]

    assert len(refusals) == 16
    assert {refusal["kind"] for refusal in refusals} == {"wrong-cookie"}
    assert "the cookie is not the one" in refusals[0]["reason"]


def test_a_connector_before_its_ok_waits() -> None:
    bench = Bench(ready=False)
    bench.connect(DRAFT_LE, "shop-1").hello()

    found = answer(bench)

    assert found["waiting"] == 1
    assert [one["state"] for one in found["instance_list"]] == ["waiting"]
