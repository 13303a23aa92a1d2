"""A call that is made to fail is one whose caller sees the error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proving.simulator.engine import failing
from proving.simulator.engine.failing import Failing


def cleared_up() -> None:
    """A call while a generator is closed, where an error can reach nobody."""


def numbers() -> Iterator[int]:
    try:
        yield 1
    finally:
        cleared_up()


def test_an_error_that_no_caller_can_see_is_put_off_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(failing, "_ROOMS", (__file__,))
    opened = numbers()
    next(opened)
    fault = Failing(1)

    def close_and_call_again() -> None:
        nonlocal opened
        with fault.counting():
            del opened
            cleared_up()

    with pytest.raises(MemoryError, match="in cleared_up"):
        close_and_call_again()

    assert fault.failed
    assert "Exception ignored" not in capsys.readouterr().err
