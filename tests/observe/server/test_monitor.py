"""The monitor: one snapshot for all browsers, taken often only while somebody watches; failures that it survives."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.observe import fakes
from tests.waiting import eventually
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.server import driver_pages
from wallaroo_spark.observe.server.driver_pages import Monitor
from wallaroo_spark.observe.server.messages import Request

ASK = Request("GET", "/api/status", {}, {})


class Looks:
    """Snapshots that are counted, and that fail when told to."""

    def __init__(self) -> None:
        self.count = 0
        self.broken = False

    def __call__(self) -> ReceiverStatus:
        self.count += 1
        if self.broken:
            raise RuntimeError("on purpose")
        return fakes.running(1_700_000_000.0 + self.count, step=self.count)


def shown(watching: Monitor) -> dict[str, Any]:
    response = watching.answer(ASK)
    assert response.status == 200
    return dict(json.loads(response.body))


def test_many_browsers_cause_no_more_snapshots() -> None:
    looks = Looks()
    watching = Monitor(looks, "orders")
    watching.look()

    times = {shown(watching)["status"]["time"] for _ in range(20)}

    assert len(times) == looks.count == 1


def test_a_receiver_is_looked_at_more_often_while_somebody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_pages, "SHARE", 0)
    watching = Monitor(Looks(), "orders")
    watching.look()
    assert watching._interval == driver_pages.UNWATCHED_SECONDS
    shown(watching)
    watching.look()
    assert watching._interval == driver_pages.WATCHED_SECONDS


def test_a_large_receiver_is_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_pages, "SHARE", 1e12)
    watching = Monitor(Looks(), "orders")
    watching.look()

    assert watching._interval > 100
    assert shown(watching)["patience"] >= 2 * watching._interval


def test_a_first_browser_wakes_a_monitor_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_pages, "UNWATCHED_SECONDS", 10_000.0)
    looks = Looks()
    watching = Monitor(looks, "orders")
    watching.start()
    try:
        eventually(lambda: looks.count == 1)
        shown(watching)
        eventually(lambda: looks.count >= 2, "the monitor looks again")
    finally:
        watching.stop()


def test_a_look_that_fails_leaves_the_last_figures_to_grow_old(caplog: pytest.LogCaptureFixture) -> None:
    looks = Looks()
    watching = Monitor(looks, "orders")
    watching.look()
    looks.broken = True
    for _ in range(3):
        watching.look()
    watching.settle()
    first = shown(watching)

    assert caplog.text.count("the status page has no new figures: on purpose") == 1
    assert shown(watching)["age"] >= first["age"]
    looks.broken = False
    watching.look()
    assert shown(watching)["status"]["time"] > first["status"]["time"]


def test_a_receiver_that_was_never_looked_at_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_pages, "FIRST_SECONDS", 0.01)

    assert Monitor(Looks(), "orders").answer(ASK).status == 503


def test_a_monitor_ends_its_thread() -> None:
    watching = Monitor(Looks(), "orders")
    watching.start()
    watching.stop()
    watching.stop()

    assert not [thread for thread in threading.enumerate() if thread.name == "wallaroo-orders-monitor"]
