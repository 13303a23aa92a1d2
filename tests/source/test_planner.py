"""A batch's end is computed from the slots' answers, within Spark's limits and never backwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from wallaroo_spark.inner.calls import StreamOffer, shares
from wallaroo_spark.references import PlannedRange, StreamKey, ranges
from wallaroo_spark.source.planner import combine, slot_of


def offers(ends: Mapping[str, Any] | None = None, start: int = 0) -> dict[StreamKey, StreamOffer]:
    """Streams of the shop by id; of an id that is a number as many messages as it says, of one byte each."""
    return {
        StreamKey("shop", int(name)): StreamOffer(start, end, *(2 * [end if isinstance(end, int) else 1]))
        for name, end in (ends or {}).items()
    }


def test_without_limits_everything_is_taken() -> None:
    assert shares({0: (10, 100)}, None, None) == {}
    assert shares({0: (10, 100)}, 10, 100) == {}
    assert shares({}, 10, 100) == {}


def test_slots_share_a_limit_in_proportion_to_their_rows() -> None:
    offered = {0: (30, 300), 1: (10, 500), 2: (0, 0)}

    assert shares(offered, 20, None) == {0: (15, None), 1: (5, None)}
    assert shares(offered, None, 80) == {0: (None, 30), 1: (None, 50)}
    assert shares(offered, 20, 80) == {0: (15, 30), 1: (5, 50)}


def test_every_slot_has_a_share_of_the_smallest_limit() -> None:
    assert shares({0: (1000, 1), 1: (1, 1)}, 1, None) == {0: (1, None), 1: (1, None)}


def test_a_stream_that_two_slots_have_is_read_from_the_one_that_has_more() -> None:
    plan = combine({0: offers({"1": 5}), 1: offers({"1": 9}), 2: offers({"1": 7})})

    assert plan.ends == {"shop": {"1": 9}}
    assert plan.holders == {StreamKey("shop", 1): 1}
    assert plan.complete


def test_of_ephemeral_references_the_first_slot_counts_for_they_cannot_be_compared() -> None:
    plan = combine({0: offers({"1": "e:0:1:5"}), 1: offers({"1": "e:1:1:9"})})

    assert plan.ends == {"shop": {"1": "e:0:1:5"}}
    assert plan.holders == {StreamKey("shop", 1): 0}


def test_no_answer_is_an_empty_plan() -> None:
    assert combine({}).empty
    assert combine({0: {}}).empty


def test_ranges_are_between_offsets_without_unchanged_streams() -> None:
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
