"""A batch's end is put together from what the slots answer, within Spark's limits and never backwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.references import PlannedRange, References, StreamKey, merge, ranges
from wallaroo_spark.source.planner import Limits, Plan, combine, shares, slot_of


def answer(rows: int = 0, size: int = 0, ends: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"ends": {"shop": dict(ends)} if ends else {}, "rows": rows, "bytes": size}


@dataclass(frozen=True)
class Slot:
    """A slot that answers as a worker does: messages of one byte each, ids from 1, by stream."""

    streams: Mapping[str, int]

    def plan(self, start: References, rows: int | None = None, size: int | None = None) -> dict[str, Any]:
        left = {name: last - int(start.get("shop", {}).get(name, 0)) for name, last in self.streams.items()}
        left = {name: count for name, count in left.items() if count > 0}
        whole = sum(left.values())
        limit = min((bound for bound in (rows, size) if bound is not None), default=whole)
        if limit < whole:
            left = {name: min(count, max(1, limit * count // whole)) for name, count in left.items()}
        ends = {name: int(start.get("shop", {}).get(name, 0)) + count for name, count in left.items()}
        return answer(sum(left.values()), sum(left.values()), ends)


def plan_batch(slots: Mapping[int, Slot], start: References, limits: Limits) -> Plan:
    answers = {slot: one.plan(start) for slot, one in slots.items()}
    limited = shares(answers, limits)
    if limited:
        answers = {slot: slots[slot].plan(start, *share) for slot, share in limited.items()}
    return combine(answers)


STREAMS = st.dictionaries(st.sampled_from("12345678"), st.integers(0, 60), max_size=8)


@settings(deadline=None)
@given(
    STREAMS,
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.integers(1, 40) | st.none(),
    st.integers(1, 40) | st.none(),
)
def test_batches_keep_their_limits_and_every_message_has_its_turn(
    streams: dict[str, int], homes: list[int], max_rows: int | None, max_bytes: int | None
) -> None:
    slots = {
        slot: Slot({name: last for name, last in streams.items() if homes["12345678".index(name)] == slot})
        for slot in range(3)
    }
    limits = Limits(max_rows, max_bytes)
    # Every stream may give one message whatever its share is, so that none of many has to wait for ever.
    most = min((bound for bound in (max_rows, max_bytes) if bound), default=10**6) + len(streams)
    start: dict[str, dict[str, Any]] = {}
    left = sum(streams.values())
    while not (plan := plan_batch(slots, start, limits)).empty:
        after = merge(start, plan.ends)
        planned = ranges(start, after)
        taken = sum(int(one.end) - int(one.start or 0) for one in planned)
        assert all(int(one.end) > int(one.start or 0) for one in planned)
        assert 0 < taken == plan.rows <= most
        left -= taken
        start = after

    assert left == 0
    assert start.get("shop", {}) == {name: last for name, last in streams.items() if last}


def test_without_limits_everything_is_taken() -> None:
    assert shares({0: answer(10, 100, {"1": 10})}, Limits()) == {}
    assert shares({0: answer(10, 100, {"1": 10})}, Limits(10, 100)) == {}


def test_slots_share_a_limit_in_proportion_to_what_they_have() -> None:
    answers = {0: answer(30, 300, {"1": 30}), 1: answer(10, 500, {"2": 10}), 2: answer()}

    assert shares(answers, Limits(max_rows=20)) == {0: (15, None), 1: (5, None)}
    assert shares(answers, Limits(max_bytes=80)) == {0: (None, 30), 1: (None, 50)}
    assert shares(answers, Limits(20, 80)) == {0: (15, 30), 1: (5, 50)}


def test_every_slot_has_a_share_of_the_smallest_limit() -> None:
    assert shares({0: answer(1000, 1, {"1": 1000}), 1: answer(1, 1, {"2": 1})}, Limits(max_rows=1)) == {
        0: (1, None),
        1: (1, None),
    }


def test_a_stream_that_two_slots_have_is_read_from_the_one_that_has_more() -> None:
    plan = combine({0: answer(5, 5, {"1": 5}), 1: answer(9, 9, {"1": 9}), 2: answer(7, 7, {"1": 7})})

    assert plan.ends == {"shop": {"1": 9}}
    assert plan.holders == {StreamKey("shop", 1): 1}


def test_of_ephemeral_references_the_first_slot_counts_for_they_cannot_be_compared() -> None:
    plan = combine({0: answer(5, 5, {"1": "e:0:1:5"}), 1: answer(9, 9, {"1": "e:1:1:9"})})

    assert plan.ends == {"shop": {"1": "e:0:1:5"}}
    assert plan.holders == {StreamKey("shop", 1): 0}


def test_no_answer_is_an_empty_plan() -> None:
    assert combine({}).empty
    assert combine({0: answer()}).empty


def test_ranges_lie_between_offsets_and_leave_out_what_stands_still() -> None:
    start = {"shop": {"1": 5, "2": 7}}
    end = {"shop": {"1": 9, "2": 7, "3": 1}, "": {"4": 2}}

    assert ranges(start, end) == [
        PlannedRange(StreamKey("shop", 1), 5, 9),
        PlannedRange(StreamKey("shop", 3), None, 1),
        PlannedRange(StreamKey("", 4), None, 2),
    ]


@pytest.mark.parametrize(
    ("holders", "assigned", "to", "slot"),
    [
        ({StreamKey("shop", 1): 3}, {"shop": 2}, 9, 3),
        ({StreamKey("shop", 2): 3}, {"shop": 2}, 9, 2),
        ({}, {"other": 2}, 9, 0),
        ({}, {"shop": 2}, "e:1:17:9", 1),
        ({StreamKey("shop", 1): 3}, {}, "e:1:17:9", 3),
    ],
    ids=["who has it", "who serves its instance", "a guess", "where alone it can be", "who has what is ephemeral"],
)
def test_a_range_is_asked_of_the_likeliest_slot(
    holders: dict[StreamKey, int], assigned: dict[str, int], to: int | str, slot: int
) -> None:
    assert slot_of(PlannedRange(StreamKey("shop", 1), None, to), holders, assigned) == slot
