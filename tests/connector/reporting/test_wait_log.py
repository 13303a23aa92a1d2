"""A long wait is logged with its reason, again with growing pauses, and once more when it goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.connector.scripted_worker import ScriptedWorker, spin
from tests.connector.support import connector, send_all, starved
from wallaroo_spark.connector import reporting
from wallaroo_spark.connector.reporting import WaitLog


class Loop:
    """A loop's clock and timers, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, object, tuple[object, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: object, *args: object) -> object:
        self.timers.append((self.now + delay, callback, args))
        return object()

    def advance(self, until: float) -> None:
        while self.timers and min(at for at, _, _ in self.timers) <= until:
            timer = min(self.timers, key=lambda one: one[0])
            self.timers.remove(timer)
            self.now, callback, args = timer
            callback(*args)  # type: ignore[operator]  # a callback
        self.now = until


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    made = Loop()
    monkeypatch.setattr("asyncio.get_running_loop", lambda: made)
    return made


def test_a_line_comes_after_some_seconds_then_with_growing_pauses_and_one_at_the_end(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    log = WaitLog("orders/shop-1", lambda: f"waits {loop.now:g}")

    with log.waiting():
        loop.advance(14.9)
        assert caplog.messages == []
        loop.advance(1000.0)
    assert caplog.messages == [
        *(f"waits {at}" for at in (15, 30, 60, 120, 240, 480, 780)),
        "orders/shop-1 goes on after 1000 seconds",
    ]
    assert log.since is None


def test_short_waits_one_after_the_other_are_not_logged(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    log = WaitLog("orders/shop-1", lambda: "waits")

    for at in range(50):
        with log.waiting():
            loop.advance(at + 0.9)
        loop.advance(at + 1.0)
    loop.advance(100.0)
    assert caplog.messages == []
    assert loop.timers == []


def test_overlapping_waits_are_one_as_long_as_the_oldest_lasts(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    log = WaitLog("orders/shop-1", lambda: f"waits {loop.now:g}")

    with log.waiting():
        first = log.waiting()
        first.__enter__()
        loop.advance(16.0)
        assert caplog.messages == ["waits 15"]
        first.__exit__(None, None, None)
        loop.advance(31.0)
    assert caplog.messages == ["waits 15", "waits 30", "orders/shop-1 goes on after 31 seconds"]


def test_a_call_that_fails_does_not_go_on(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    log = WaitLog("orders/shop-1", lambda: f"waits {loop.now:g}")

    def call() -> None:
        with log.waiting():
            loop.advance(31)
            raise TimeoutError

    with pytest.raises(TimeoutError):
        call()

    assert caplog.messages == ["waits 15", "waits 30"]


async def test_a_real_wait_names_the_reason_and_the_way_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "WAIT_SECONDS", 0.01)
    async with ScriptedWorker(credits=4, regrant=False, auto_commit=False) as worker, connector(worker) as sender:
        stream = await sender.open("a")
        sending = asyncio.create_task(send_all(stream, 5))
        assert await starved(sender) == "credit"
        await spin(lambda: any("orders/shop-1 waits: credits 0" in line for line in caplog.messages))
        assert any("check that the receiver's query runs and commits" in line for line in caplog.messages)
        worker.session.write(worker.session.session.ack(5))
        await sending
        await spin(lambda: any("orders/shop-1 goes on after" in line for line in caplog.messages))
        draining = asyncio.create_task(sender.drain())
        await spin(lambda: any("5 messages are sent to" in line for line in caplog.messages))
        worker.commit()
        await draining
