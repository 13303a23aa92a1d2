"""The record of a run: its content, its bounds, and the JSON and the report that are made of it."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.observe import fakes
from wallaroo_spark.observe import record as run_record
from wallaroo_spark.observe.faces.page import MOST_ROWS, PageQuery, document
from wallaroo_spark.observe.faces.report import report_html
from wallaroo_spark.observe.receiver import ReceiverStatus, Refusal
from wallaroo_spark.observe.record import (
    BATCHES,
    EVENTS,
    FIRST_EVENTS,
    RECENT,
    SNAPSHOTS,
    WHOLE,
    RunRecord,
    ThinningSeries,
)
from wallaroo_spark.runtime.long_jobs import Death

START = 1_700_000_000.0
HOSTILE = "<script>alert(1)</script>\"'&\x1b[2J\u202e"


def record_of(statuses: list[ReceiverStatus]) -> RunRecord:
    record = RunRecord()
    for status in statuses:
        record.add(status)
    return record


def history(steps: int, **how: Any) -> list[ReceiverStatus]:
    return [fakes.running(START + step, step=step, **how) for step in range(steps)]


def shown(record: RunRecord, **wanted: Any) -> dict[str, Any]:
    made = document(record, age=0.5, patience=10.0, query={name: str(value) for name, value in wanted.items()})
    return dict(json.loads(json.dumps(made, allow_nan=False)))


@given(st.lists(st.integers(0, 100), max_size=500), st.sampled_from([2, 4, 10]))
def test_a_thinning_series_covers_everything_within_its_size(values: list[int], size: int) -> None:
    series: ThinningSeries[list[int]] = ThinningSeries(size, lambda parts: [value for part in parts for value in part])
    for value in values:
        series.append([value])

    assert [value for part in series for value in part] == values
    assert len(series) == len(list(series)) <= size
    assert {len(part) for part in list(series)[:-1]} <= {series.stride}


def test_a_long_run_is_kept_in_bounds() -> None:
    record = RunRecord()
    status = fakes.running(START, slots=1, streams=1)
    for step in range(5_000):
        query = dataclasses.replace(status.query, reported_batch=step, error=f"error {step}")
        record.add(dataclasses.replace(status, time=START + step, query=query))

    assert (len(record.recent), len(record.batches), len(record.snapshots)) == (RECENT, BATCHES, SNAPSHOTS)
    assert len(record.whole) <= WHOLE
    assert len(record.all_batches) <= WHOLE
    assert record.batch_count == record.event_count == 5_000
    events = record.events()
    assert len(events) == EVENTS + FIRST_EVENTS
    assert (events[0].text, events[-1].text) == ("error 4999", "error 0")
    assert len(json.dumps(shown(record, top=MOST_ROWS))) < 200_000
    assert len(report_html(record, options={}, versions={})) < 1_500_000


def test_rows_are_counted_over_the_death_of_a_worker() -> None:
    def with_rows(time: float, generation: int, rows_in: int, acked: int) -> ReceiverStatus:
        status = fakes.running(time, slots=1, streams=1)
        slot = dataclasses.replace(
            status.slots[0],
            generation=generation,
            rows_in=rows_in,
            rows_out=acked,
            counts={"ack-age:0.5": acked, "ack-age:+Inf": 1, "messages": 3},
        )
        return dataclasses.replace(status, slots=(slot,))

    record = record_of(
        [with_rows(START, 1, 100, 60), with_rows(START + 1, 1, 150, 120), with_rows(START + 2, 2, 30, 10)]
    )

    assert (record.rows_in, record.rows_out) == (180, 130)
    assert record.ack_ages() == [(0.5, 130), (None, 2)]


def test_each_death_error_and_refusal_is_one_event() -> None:
    plain, lost = history(2, slots=2), fakes.running(START + 10, trouble="lost")
    refusal = Refusal(START + 11, "wrong-cookie", "10.1.1.1:5", "", "the cookie is wrong")
    refused = dataclasses.replace(
        lost, time=START + 11, slots=tuple(dataclasses.replace(slot, refusals=(refusal,)) for slot in lost.slots[:1])
    )
    later = dataclasses.replace(refusal, at=START + 11.2)
    again = dataclasses.replace(
        refused, time=START + 12, slots=(dataclasses.replace(refused.slots[0], refusals=(later,)),)
    )
    well = [fakes.running(START + second) for second in (13, 14, 24)]

    record = record_of([*plain, lost, refused, again, *well])

    assert [(event.kind, event.where, event.bad) for event in reversed(record.events())] == [
        ("death", "slot 0", True),
        ("change", "orders", True),
        ("refused", "slot 0", True),
        ("change", "orders", False),
    ]
    assert record.death_count == 1


def test_a_registry_that_is_away_is_one_error_and_not_one_of_the_driver_too() -> None:
    text = "Redis at h:1 cannot be reached"
    status = dataclasses.replace(fakes.running(START), registry_error=text, driver_error=text)
    other = dataclasses.replace(fakes.running(START + 1), registry_error=text, driver_error="the lock is lost")

    record = record_of([status, other])

    assert [(event.where, event.text) for event in reversed(record.events()) if event.kind == "error"] == [
        ("registry", text),
        ("driver", "the lock is lost"),
    ]


def test_a_second_death_of_one_submission_number_is_seen_by_its_time() -> None:
    one, other = Death(START, 1, "first"), Death(START + 1, 2, "second")
    status = fakes.running(START + 2, trouble="lost")
    both = dataclasses.replace(status.slots[0], deaths=(one, other))

    record = record_of([status, dataclasses.replace(status, time=START + 3, slots=(both,))])

    assert record.death_count == 3


def test_the_json_shows_the_worst_rows_and_counts_the_others() -> None:
    record = record_of(history(3, slots=300, streams=3_000))
    made = shown(record, top=10)

    assert [len(made["status"][name]) for name in ("slots", "instances", "streams")] == [10, 10, 10]
    assert made["shown"] == {"slots": 300, "doors": 0, "instances": 300, "streams": 3_000}
    assert made["states"] == {"serving": 300}
    ages = [stream["ack_age"] for stream in made["status"]["streams"]]
    assert ages == sorted(ages, reverse=True)
    assert made["rates"]["rows_in"] > 0
    assert all(slot["rate_in"] is not None for slot in made["status"]["slots"])


def test_a_search_is_for_any_part_of_a_name() -> None:
    made = shown(record_of(history(3)), search="orders-1-2")

    assert [stream["name"] for stream in made["status"]["streams"]] == ["orders-1-2.jsonl"]
    assert made["shown"] == {"slots": 2, "doors": 0, "instances": 0, "streams": 1}


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, PageQuery(25, "")),
        ({"top": "7", "search": "  ShOp "}, PageQuery(7, "shop")),
        ({"top": "1000000"}, PageQuery(25, "")),
        ({"top": "99999"}, PageQuery(MOST_ROWS, "")),
        ({"top": "-1"}, PageQuery(25, "")),
        ({"top": "0"}, PageQuery(1, "")),
        ({"top": "٣"}, PageQuery(25, "")),
        ({"search": "x" * 1000}, PageQuery(25, "x" * 200)),
    ],
)
def test_any_query_is_bounded(query: dict[str, str], wanted: PageQuery) -> None:
    assert PageQuery.of(query) == wanted


class Tags(HTMLParser):
    """The tags of a document, and whether each one is closed where it has to be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in ("meta", "path", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag in ("path", "rect", "line") or self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_report_has_no_script_and_needs_no_network() -> None:
    statuses = [
        dataclasses.replace(
            status,
            name=HOSTILE,
            driver_error=f"{HOSTILE} {step}",
            slots=tuple(dataclasses.replace(slot, host=HOSTILE, last_error=HOSTILE) for slot in status.slots),
        )
        for step, status in enumerate(history(20, trouble="lost"))
    ]
    html = report_html(record_of(statuses), options={"receiver": HOSTILE}, versions={HOSTILE: HOSTILE})
    tags = Tags()
    tags.feed(html)

    assert tags.open == []
    assert {"script", "img", "link", "iframe", "form"} & tags.names == set()
    assert not re.search(r"https?:|url\(|@import", html)
    assert any("<script>alert(1)</script>" in text for text in tags.texts)


@pytest.mark.parametrize("steps", [0, 1, 2, 40])
def test_a_report_of_any_length_is_made(steps: int) -> None:
    html = report_html(record_of(history(steps)), options={}, versions={})

    assert html.startswith("<!doctype html>")
    assert html.count("<path") >= (7 if steps > 1 else 0)


def test_a_long_error_is_cut() -> None:
    status = dataclasses.replace(fakes.running(START), driver_error="x" * 100_000)

    text = record_of([status]).events()[0].text

    assert len(text) < run_record.LONGEST_TEXT + 100
    assert text.endswith("(100000 characters)")


def test_a_trouble_that_comes_back_at_once_is_one_event() -> None:
    slow = [fakes.running(START + step, step=step, trouble="sink" if step % 4 < 2 else "") for step in range(40)]
    record = record_of([*slow, *(fakes.running(START + step, step=step) for step in range(40, 60))])

    assert [(event.kind, event.bad) for event in reversed(record.events())] == [("change", True), ("change", False)]
