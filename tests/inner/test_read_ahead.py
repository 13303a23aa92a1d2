"""Reading ahead: in order, bounded, with errors in their place, and ended when nobody wants more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.inner.rows import ReadAhead


def never() -> None:
    raise AssertionError("nothing is to be cancelled")


def test_everything_comes_in_order() -> None:
    assert list(ReadAhead(iter(range(100)), never, SECONDS)) == list(range(100))
    assert list(ReadAhead(iter(()), never, SECONDS)) == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("the third")

    ahead = iter(ReadAhead(items(), never, SECONDS))
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(ahead)


def test_no_more_is_read_ahead_than_is_allowed() -> None:
    read: list[int] = []
    three = threading.Event()

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            if number == 3:
                three.set()
            yield number

    ahead = iter(ReadAhead(items(), lambda: None, SECONDS, depth=2))
    assert next(ahead) == 0
    assert three.wait(SECONDS)
    # One is handed out, two wait, and one more is in the reader's hand.
    assert read == [0, 1, 2, 3]
    ahead.close()  # type: ignore[attr-defined]  # it is a generator


def test_closing_early_cancels_and_waits_for_the_reader() -> None:
    cancelled, over = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        assert cancelled.wait(SECONDS)
        over.set()
        raise ConnectionError("cancelled")

    ahead = iter(ReadAhead(items(), cancelled.set, SECONDS))
    assert next(ahead) == 1
    ahead.close()  # type: ignore[attr-defined]  # it is a generator
    assert over.is_set()


def test_a_silence_ends_the_wait_and_is_not_waited_for() -> None:
    cancelled, goes_on = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield 1
        goes_on.wait(SECONDS)
        yield 2

    ahead = iter(ReadAhead(items(), cancelled.set, 0.01))
    assert next(ahead) == 1
    with pytest.raises(TimeoutError, match=r"nothing came within 0\.01 s"):
        next(ahead)
    assert cancelled.is_set()
    goes_on.set()
