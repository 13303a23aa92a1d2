"""Coroutines on the event loop of another thread: no caller waits for a loop that has ended."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.loop_thread import LoopThread


async def answer() -> int:
    return 42


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_call_returns_the_result_of_the_coroutine() -> None:
    thread = LoopThread("loop")

    assert (thread.call(answer), thread.read(lambda: thread.inside), thread.inside) == (42, True, False)
    thread.stop()


def test_a_call_whose_coroutine_cannot_be_made_raises_why() -> None:
    thread = LoopThread("loop")
    try:
        with pytest.raises(TypeError, match="takes 0 positional arguments"):
            thread.call(lambda: answer(1))  # type: ignore[call-arg]  # what is tried
        assert thread.call(answer) == 42
    finally:
        thread.stop()


def test_a_call_of_a_thread_that_has_ended_is_cancelled() -> None:
    thread = LoopThread("loop")
    thread.stop()

    assert thread.stopped
    with pytest.raises(CancelledError):
        thread.call(answer)


def test_a_call_that_waits_while_the_thread_ends_is_cancelled() -> None:
    thread, started = LoopThread("loop"), threading.Event()

    async def wait() -> None:
        started.set()
        await forever()

    with ThreadPoolExecutor(1) as callers:
        call = callers.submit(thread.call, wait)
        assert started.wait(30)
        thread.stop()
        with pytest.raises(CancelledError):
            call.result(SECONDS)


def test_a_thread_ends_behind_its_last_coroutine() -> None:
    thread, done = LoopThread("loop"), threading.Event()

    async def last() -> None:
        done.set()

    thread.stop_after(last)
    thread.join(SECONDS)

    assert (done.is_set(), thread.stopped) == (True, True)
