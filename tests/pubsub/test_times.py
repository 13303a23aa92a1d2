"""Times: a partial order, a way to sort that fits it, and their shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.pubsub.strategies import lists_of_times
from wallaroo_spark.errors import PubSubError, RemoteProtocolError
from wallaroo_spark.pubsub.times import (
    DEEPEST,
    MOST_COMPONENTS,
    Time,
    at_or_before,
    batch_of,
    check,
    key,
    least,
    pack,
    parse,
    same_shape,
    start_of,
)


@given(lists_of_times(3))
def test_it_is_a_partial_order(times: list[Time]) -> None:
    a, b, c = (times * 3)[:3]

    assert at_or_before(a, a)
    assert not (at_or_before(a, b) and at_or_before(b, a)) or a == b
    assert not (at_or_before(a, b) and at_or_before(b, c)) or at_or_before(a, c)


@given(lists_of_times())
def test_sorting_keeps_the_partial_order(times: list[Time]) -> None:
    ordered = sorted(times, key=key)

    for place, time in enumerate(ordered):
        assert not any(at_or_before(later, time) and later != time for later in ordered[place + 1 :])


@given(lists_of_times(1))
def test_the_least_time_is_before_all_of_its_shape(times: list[Time]) -> None:
    assert at_or_before(least(times[0]), times[0])
    assert same_shape(least(times[0]), times[0])


@pytest.mark.parametrize(
    ("one", "other", "before", "after"),
    [
        (3, 3, True, True),
        (2, 3, True, False),
        ((1, 5), (2, 5), True, False),
        ((1, 5), (2, 4), False, False),
        ((1, (0, 3)), (1, (2, 1)), False, False),
        (None, None, True, True),
    ],
)
def test_tuples_are_compared_component_by_component(one: Time, other: Time, before: bool, after: bool) -> None:
    assert (at_or_before(one, other), at_or_before(other, one)) == (before, after)


@pytest.mark.parametrize(("one", "other"), [(1, (1,)), ((1, 2), (1, 2, 3)), (None, 0), ((1, 2), (1, (2,)))])
def test_times_of_different_shapes_are_not_compared(one: Time, other: Time) -> None:
    assert not same_shape(one, other)
    with pytest.raises(PubSubError, match="are of different shapes; give all"):
        at_or_before(one, other)


@given(lists_of_times(1))
def test_a_time_survives_a_message(times: list[Time]) -> None:
    assert parse(pack(times[0]), "a test") == check(times[0]) == times[0]


DEEP: Any = 1
for _ in range(DEEPEST + 1):
    DEEP = (DEEP,)


@pytest.mark.parametrize("value", [True, 1.5, "1", (), 1 << 64, -(1 << 63) - 1, (1,) * (MOST_COMPONENTS + 1), DEEP])
def test_a_time_that_no_message_can_carry_is_refused(value: Any) -> None:
    with pytest.raises(PubSubError, match="the time"):
        check(value)


@pytest.mark.parametrize("value", [True, 1.5, "1", b"1", [], {}, [1] * (MOST_COMPONENTS + 1), [[[[[1]]]]], [1, "2"]])
def test_a_value_that_is_not_a_time_is_refused(value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match=r"a test has .* where a time is expected"):
        parse(value, "a test")


def test_a_published_time_names_its_batch() -> None:
    assert (batch_of(7), batch_of((7, 3)), start_of(7, product=False), start_of(7, product=True)) == (7, 7, 7, (7, 0))
    for time in (None, (), ((1, 2), 3)):
        with pytest.raises(PubSubError, match="has no batch"):
            batch_of(time)
