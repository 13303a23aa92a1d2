"""A worker keeps its last events with their instructions: bounded, without messages, formatted only on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import pytest

from tests.worker.bench import Bench
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.environment import carry_out
from wallaroo_spark.worker.machine.story import CHARACTERS, FREQUENT_EVENTS, INSTRUCTIONS, RARE_EVENTS, Digest, Story

KEY = StreamKey("shop-1", 7)
LONG = "x" * 100_000
MANY = tuple(range(1000))
NAMES = tuple(f"{LONG}{number}" for number in range(100))
PARTS: dict[str, Any] = {
    "address": LONG, "asked": MANY, "at_once": True, "batch": 3, "data": LONG.encode(), "epoch": 2,
    "error": ValueError(LONG), "granted": frozenset(MANY), "instance": LONG, "instances": NAMES, "names": NAMES,
    "planned": PlannedRange(StreamKey(LONG, 7), None, 9), "given_up": (PlannedRange(KEY, 1, 9),) * 1000,
    "now": 1.5, "parts": tuple((number, LONG.encode()) for number in range(50)), "peer": LONG, "queued": 5,
    "ranges": (PlannedRange(KEY, None, 9),) * 1000, "reading": True, "reason": LONG, "received_at": 1,
    "leaving": ("a group", frozenset({KEY})), "behind": 7,
    "ended": (KEY,), "scopes": NAMES, "cursor": 3,
    "references": {KEY: 9},
    "connection": 4, "fault": LONG, "messages": 7, "door": True, "size": 7, "slot": 1, "streams": MANY, "text": LONG,
    "told_at": 5, "warning": True,
}  # fmt: skip
"""A value for every field of events and instructions, as large as any may be."""
VALUES = [kind(**{field.name: PARTS[field.name] for field in dataclasses.fields(kind)})
          for kind in (*get_args(e.Event), *get_args(e.Instruction))]  # fmt: skip
EVENTS = [value for value in VALUES if isinstance(value, get_args(e.Event))]
INSTRUCTIONS_OF_ALL_KINDS = [value for value in VALUES if isinstance(value, get_args(e.Instruction))]


def inside(value: Any) -> list[Any]:
    """All objects that a value refers to, without those of its type."""
    if isinstance(value, Digest):
        return inside(value.values)
    if isinstance(value, tuple | list | frozenset | dict):
        return [found for one in value for found in inside(one)]
    return [value]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_only_a_digest_is_kept_of_whatever_comes(value: Any) -> None:
    story = Story()
    if isinstance(value, get_args(e.Event)):
        story.add(1.0, value, [e.Log(None, "so that it is kept")])
    else:
        story.add(1.0, e.Stopping("the end"), [value])

    (entry,) = (*story._rare, *story._frequent)
    kept = [found for one in (entry.event, *entry.instructions) for found in inside(one)]
    assert {type(one) for one in kept} <= {str, int, float, bool, type(None)}
    assert len(kept) <= 20
    assert all(len(one) <= CHARACTERS for one in kept if isinstance(one, str))
    assert type(value).__name__ in story.lines()[0]


def test_the_log_is_bounded_and_rare_events_stay() -> None:
    story = Story()
    story.add(0.0, e.Rewound(1, 0, {}), [])
    for number in range(1000):
        story.add(1.0, e.Received(((number, b"bytes"),), 0), [e.Send(number, b"an ACK"), e.WakeReaders()])
        story.add(1.0, e.Tick(1.0), [])
    assert len(story.lines()) == FREQUENT_EVENTS + 1
    assert "Rewound(epoch=1, batch=0, references=0) → nothing" in story.lines()[0]
    assert (
        "#1001 1.00 s  Received(connections=(999,), bytes=5) → Send(connection=999, bytes=6), WakeReaders()"
        in story.lines()
    )

    for number in range(1000):
        story.add(2.0, e.Disconnected(number), [e.Close(number)] * 100)
    assert len(story.lines()) == FREQUENT_EVENTS + RARE_EVENTS
    assert story.lines()[-1].endswith(f"and {100 - INSTRUCTIONS} more")


def test_a_machine_tells_its_own_story(bench: Bench, make_bench: Callable[..., Bench]) -> None:
    bench.join()

    lines = bench.state.story.lines()
    assert [line for line in lines if "Connected(" in line]
    assert [line for line in lines if "AskAssignment(" in line]
    assert make_bench(ready=False).state.story.lines() == []


def test_an_error_that_ends_the_worker_is_in_its_story(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(event: e.Event) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(bench.state.connections, "tick", fail)
    with pytest.raises(ZeroDivisionError):
        bench.state.handle(e.Tick(1.0))

    assert "Tick(now=1.0) → FAILED: ZeroDivisionError('a bug')" in bench.state.story.lines()[-1]


class Recorder:
    """An environment that records its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.asked.append(name)


@pytest.mark.parametrize("instruction", INSTRUCTIONS_OF_ALL_KINDS, ids=lambda one: type(one).__name__)
def test_every_instruction_is_one_call_of_the_world_outside(instruction: e.Instruction) -> None:
    outside: Any = Recorder()

    carry_out(instruction, outside)

    assert len(outside.asked) == 1
