"""Both antichains against sets that are looked through whole."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pubsub.strategies import SHAPES, lists_of_times
from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.times import MaximalAntichain, MinimalAntichain, Time, at_or_before, minimal

Step = list[tuple[Time, int]]
steps = st.sampled_from(SHAPES).flatmap(
    lambda times: st.lists(st.lists(st.tuples(times, st.integers(-2, 2)), max_size=5), max_size=8)
)


def minimal_of(times: set[Time]) -> set[Time]:
    return {time for time in times if not any(at_or_before(other, time) and other != time for other in times)}


def maximal_of(times: set[Time]) -> set[Time]:
    return {time for time in times if not any(at_or_before(time, other) and other != time for other in times)}


@given(steps)
def test_a_lower_frontier_is_the_minimum_of_the_held_times(steps: list[Step]) -> None:
    frontier, model, shown = MinimalAntichain(), Counter[Time](), Counter[Time]()

    for changes in steps:
        after = Counter(model)
        for time, change in changes:
            after[time] += change
        if any(count < 0 for count in after.values()):
            before = frontier.elements, frontier._counts.copy()
            with pytest.raises(PubSubError, match="cannot remove"):
                frontier.update(changes)
            assert (frontier.elements, frontier._counts) == before
            continue
        model = after
        seen = frontier.update(changes)

        assert all(change in (-1, 1) for _, change in seen)
        assert len({time for time, _ in seen}) == len(seen), "a change that cancels itself is not shown"
        for time, change in seen:
            shown[time] += change
        assert set(frontier.elements) == minimal_of(set(+model))
        assert frontier._counts == +model
        # A reader that applies only the returned changes has the same frontier.
        assert +shown == Counter(frontier.elements)


@given(lists_of_times())
def test_an_upper_frontier_is_the_maximum_of_the_inserted_times(times: list[Time]) -> None:
    frontier = MaximalAntichain()

    for place, time in enumerate(times):
        covered = any(at_or_before(time, earlier) for earlier in times[:place])
        assert frontier.insert(time) is not covered
        assert set(frontier.elements) == maximal_of(set(times[: place + 1]))
        assert len(frontier) == len(set(frontier))


@given(st.sampled_from(SHAPES).flatmap(lambda t: st.tuples(st.lists(t), st.lists(t, max_size=3), st.lists(t))))
def test_dropping_passed_elements_changes_nothing_for_later_times(
    given: tuple[list[Time], list[Time], list[Time]],
) -> None:
    inserted, lower, arriving = given
    whole, dropped, passed = MaximalAntichain(inserted), MaximalAntichain(inserted), MinimalAntichain(lower)

    dropped.drop_passed(passed)

    for time in arriving:
        if passed.may_see(time):
            assert dropped.covers(time) == whole.covers(time)
    assert all(passed.may_see(time) for time in dropped)


@given(lists_of_times())
def test_the_order_of_elements_does_not_depend_on_the_order_of_insertion(times: list[Time]) -> None:
    assert MaximalAntichain(times).elements == MaximalAntichain(reversed(times)).elements
    assert MinimalAntichain(times).elements == MinimalAntichain(reversed(times)).elements
    assert set(minimal(times)) == minimal_of(set(times))


def test_a_time_that_two_partitions_hold_stays_until_both_gave_it_up() -> None:
    frontier = MinimalAntichain([0, 0])

    assert frontier.update([(0, -1), (1, 1)]) == []
    assert frontier.elements == (0,)
    assert frontier.update([(0, -1), (1, 1)]) == [(0, -1), (1, 1)]
    assert frontier.elements == (1,)
    assert frontier.update([(1, -2)]) == [(1, -1)]
    assert not frontier.may_see(5)


def test_the_example_of_the_seed() -> None:
    """Completed 0 to 2, active 3 and 5: neither 4 nor 5 is seen, and 6 is the first that is."""
    upper = MaximalAntichain([3, 5])

    assert [upper.covers(time) for time in (3, 4, 5, 6)] == [True, True, True, False]
    upper.drop_passed(MinimalAntichain([6]))
    assert upper.elements == ()
