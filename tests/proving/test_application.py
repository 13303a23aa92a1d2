"""The random application: its judge finds what is broken, and a short run keeps every promise."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from proving.application.judge import AUDIT, FAILED, NOTES, ORDERS, RECEIPTS, Evidence, Record, judge
from proving.application.run import CLIENTS, ApplicationPlan, run

AT = datetime(2026, 1, 5, tzinfo=UTC)
STAGES = ["pay", "check", "ship"]


def record(place: tuple[int, int], name: str, **data: Any) -> Record:
    return Record(place, name, json.dumps(data).encode(), AT.timestamp(), {})


def row(kind: str, **more: Any) -> dict[str, Any]:
    names = ("version", "stage", "target_stream", "target_partition", "offsets", "outcome", "reason")
    mine = {"pipeline": "rand/fulfil", "birth": 1, "partition": 0, "instance": 1, "kind": kind, "at": AT}
    return {**dict.fromkeys(names), **mine, **more}


def counted() -> list[dict[str, Any]]:
    steps = [row("began", version=1), row("output", stage="count"), row("ended", outcome="done")]
    return [{**step, "pipeline": "rand/count"} for step in steps]


def whole() -> Evidence:
    """One order, which was paid, checked and shipped."""
    given = {"partition": 0, "first": 1, "missed": 0, "ids": ["publisher-1-1"]}
    pointer = row("pointer", stage="pay", target_stream=RECEIPTS, target_partition=0, offsets=[1])
    outputs = [row("output", stage=stage) for stage in STAGES]
    journals: dict[str, list[dict[str, Any]]] = {role: [] for role in CLIENTS}
    ask = {"kind": "ask", "id": "publisher-1-1", "stream": ORDERS, "delay": 0, "at": AT.timestamp()}
    journals["publisher-1"] = [ask, {"kind": "published", "id": "publisher-1-1", "places": [[0, 1]]}]
    journals["billing"] = [{"kind": kind, **given} for kind in ("given", "acking")]
    journals["ledger"] = [
        {"kind": "given", **given},
        {"kind": "acking", "attempt": "a", **given},
        {"kind": "acked", "attempt": "a", "written": [[AUDIT, [[0, 1]], ""]], **given},
    ]
    return Evidence(
        {
            ORDERS: [record((0, 1), "publisher-1-1")],
            NOTES: [],
            AUDIT: [record((0, 1), "x", attempt="a", partition=0, offset=1)],
            RECEIPTS: [record((0, 1), "y", partition=0, instance=1)],
            FAILED: [],
        },
        [row("began", version=1), *outputs, pointer, row("ended", outcome="done"), *counted()],
        journals,
        {1: STAGES},
    )


def test_a_run_without_a_fault_has_no_broken_promise() -> None:
    assert judge(whole()).broken == []


def lost(given: Evidence) -> None:
    del given.tables[ORDERS][0]


def twice(given: Evidence) -> None:
    given.tables[ORDERS].append(record((1, 1), "publisher-1-1"))


def began_twice(given: Evidence) -> None:
    given.history.append(row("began", version=1))


def never_ended(given: Evidence) -> None:
    given.history.remove(row("ended", outcome="done"))


def second_output(given: Evidence) -> None:
    given.history.insert(1, row("output", stage="pay"))


def no_receipt(given: Evidence) -> None:
    given.tables[RECEIPTS].clear()


def second_receipt(given: Evidence) -> None:
    given.tables[RECEIPTS].append(record((0, 2), "z", partition=0, instance=1))


def letter_without_failure(given: Evidence) -> None:
    given.tables[FAILED].append(record((0, 1), "z"))


def never_acked(given: Evidence) -> None:
    given.journals["billing"].clear()


def passed_over(given: Evidence) -> None:
    given.tables[ORDERS].append(record((0, 2), "publisher-1-2"))
    line = {"kind": "given", "partition": 0, "first": 3, "missed": 0, "ids": []}
    given.journals["billing"].append(line)


def not_written(given: Evidence) -> None:
    given.tables[AUDIT].clear()


def written_twice(given: Evidence) -> None:
    again = record((0, 2), "z", attempt="a", partition=0, offset=1)
    given.tables[AUDIT].append(again)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (lost, "that were published are not in"),
        (twice, "more than once"),
        (began_twice, "began twice"),
        (never_ended, "have not one end"),
        (second_output, "more than one output"),
        (no_receipt, "where nothing is"),
        (second_receipt, "have no pointer"),
        (letter_without_failure, "have no pointer"),
        (never_acked, "never acked by group billing"),
        (passed_over, "and has acked up to"),
        (not_written, "where it is not"),
        (written_twice, "more than one entry"),
    ],
)
def test_the_judge_finds(fault: Any, sentence: str) -> None:
    given = whole()
    fault(given)

    assert any(sentence in broken for broken in judge(given).broken), judge(given).broken


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_random_application_keeps_its_promises(tmp_path: Path) -> None:
    lines: list[str] = []
    plan = ApplicationPlan(tmp_path / "app", minutes=0.7, seed=1, rate=1, pause=8, change=6, limit=300, kills=3)

    done = run(plan, lines.append)

    assert done.passed, (done, lines)
    assert sum(number for name, number in done.events.items() if name.startswith("kills")) >= plan.kills
