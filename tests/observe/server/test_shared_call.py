"""Two who ask at once share one call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from wallaroo_spark.observe.server import endpoints
from wallaroo_spark.observe.server.endpoints import SharedCall

WAIT = 60.0


def test_those_who_ask_while_a_call_runs_get_its_result() -> None:
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def work() -> int:
        calls.append(1)
        begun.set()
        assert go_on.wait(WAIT)
        return len(calls)

    call = SharedCall(work)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(call)
        assert begun.wait(WAIT)
        running = call._running
        assert running is not None
        joined = threading.Semaphore(0)
        original = running.result

        def result(timeout: float | None = None) -> int:
            joined.release()
            return original(timeout)

        running.result = result  # type: ignore[method-assign]  # counts the calls
        others = [pool.submit(call) for _ in range(2)]
        for _ in others:
            assert joined.acquire(timeout=WAIT)
        go_on.set()

        assert [one.result(WAIT) for one in (first, *others)] == [1, 1, 1]
    assert call() == 2


def test_an_error_reaches_the_caller_and_the_next_call_is_a_new_one() -> None:
    answers: Iterator[Exception | int] = iter([ZeroDivisionError("a fault"), 7])

    def work() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    call = SharedCall(work)
    with pytest.raises(ZeroDivisionError):
        call()
    assert call() == 7


def test_a_probe_is_answered_soon_with_the_newest_result_unless_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, calls = threading.Event(), []

    def work() -> int:
        calls.append(1)
        assert len(calls) == 1 or go_on.wait(WAIT)
        return len(calls)

    call = SharedCall(work)
    monkeypatch.setattr(endpoints, "HEALTH_SECONDS", WAIT)
    assert call.soon() == 1
    monkeypatch.setattr(endpoints, "HEALTH_SECONDS", 0.01)
    assert call.soon() == 1
    monkeypatch.setattr(endpoints, "OLD_SECONDS", 0.0)
    assert call.soon() is None
    monkeypatch.setattr(endpoints, "HEALTH_SECONDS", WAIT)
    go_on.set()
    assert call.soon() in (2, 3)
