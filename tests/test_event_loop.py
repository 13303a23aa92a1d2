"""Coroutines on the event loop of another thread: no caller waits for a loop that has ended."""

from __future__ import annotations

import asyncio
import threading
import traceback
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.errors import TransportError
from wallaroo_spark.event_loop import LoopThread


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
        assert started.wait(SECONDS)
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


def test_an_error_of_the_package_is_raised_without_the_frames_of_the_loop() -> None:
    async def refused() -> None:
        try:
            await asyncio.open_connection("127.0.0.1", 1)
        except OSError as error:
            raise TransportError("the peer is away", code="peer-away") from error

    thread = LoopThread("loop")
    try:
        with pytest.raises(TransportError, match="the peer is away") as caught:
            thread.call(refused)
    finally:
        thread.stop()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_an_error_of_the_package_is_raised_without_the_frames_of_the_loop", "call"]
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.__traceback__ is None
