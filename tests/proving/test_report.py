"""The figures of a run: the age of the oldest message without an answer, and how soon answers followed the faults."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from proving.chaos.faults import Blow
from proving.chaos.judge import Verdict, Written
from proving.chaos.orders import times
from proving.chaos.report import Run, Sent, ages
from proving.chaos.schedule import Fault, Kind

BEGAN = 1000.0
NEVER = float("inf")


def sent(answered: Sequence[float], given_up: Sequence[int] = (), name: str = "orders") -> Sent:
    """Messages that are due at seconds 0, 1, 2, …, each with the second of its answer."""
    count = len(answered)
    return Sent(
        name,
        BEGAN + np.arange(count, dtype=np.float64),
        BEGAN + np.array(answered, dtype=np.float64),
        np.array([number in given_up for number in range(count)]),
    )


def run_of(*streams: Sent, last_fault: float = 0.0, ended: float = 6.0) -> Run:
    blow = Blow(Fault(last_fault, Kind.WORKER, 0.0, 0.0), BEGAN + last_fault, BEGAN + last_fault, "worker of slot 0")
    written = Written(pa.table({}), {})
    return Run(1, BEGAN, BEGAN + ended, {"client": streams}, [blow], Verdict(), written, {}, {}, True)


def test_the_age_is_that_of_the_oldest_message_without_an_answer() -> None:
    # Message 1 is answered last, so that it is the oldest one until second 5.
    moments, worst = ages(run_of(sent([1.0, 5.0, 2.5])), [sent([1.0, 5.0, 2.5])])
    found = dict(zip(moments, worst, strict=True))
    assert (found[0.5], found[2.0], found[4.5], found[5.5]) == (0.5, 1.0, 3.5, 0.0)


def test_a_message_that_is_given_up_does_not_age_for_ever() -> None:
    _, worst = ages(run_of(), [sent([1.0, NEVER, 2.5], given_up=[1])])
    assert worst[-1] == 0.0


@pytest.mark.parametrize(
    ("answered", "given_up", "found"),
    [
        ([1.0, 2.0, 5.5], [], {"orders": 2.5}),
        ([1.0, 2.0, NEVER], [], {"orders": None}),
        ([1.0, 2.0, 3.0], [], {}),
        ([1.0, NEVER, 3.0], [1], {}),
        ([1.0, 2.0, 3.0, NEVER, NEVER], [3, 4], {"orders": None}),
    ],
    ids=["answered later", "never", "all before", "all others before", "nothing but given up behind"],
)
def test_a_stream_advances_with_its_first_answer_after_the_last_fault(
    answered: list[float], given_up: list[int], found: dict[str, float | None]
) -> None:
    assert run_of(sent(answered, given_up), last_fault=3.0).advances() == found


def test_a_line_is_acknowledged_by_the_first_reference_at_or_behind_its_end(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_bytes(b"one\ntwo two\nthree\n")
    stream = times(file, [(BEGAN + 3, 4), (BEGAN + 5, 12)], BEGAN, 2.0)
    assert stream.due.tolist() == [BEGAN, BEGAN + 2, BEGAN + 4]
    assert stream.answered.tolist() == [BEGAN + 3, BEGAN + 5, NEVER]
    assert times(file, [], BEGAN, 2.0).answered.tolist() == [NEVER] * 3
