"""Counters of a receiver over the deaths of its workers: they never go backwards, and count nothing twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.observe.facts import receiver, slot
from wallaroo_spark.observe.record import Aggregate


def messages(aggregate: Aggregate, number: int = 0) -> int:
    return aggregate.counts()[number]["messages"]


def test_the_counts_of_a_new_worker_are_added_to_those_of_the_former_one() -> None:
    aggregate = Aggregate()
    aggregate.add(receiver(slot(counts={"messages": 70}), time=1))
    aggregate.add(receiver(slot(generation=2, counts={"messages": 5}), time=2))

    assert messages(aggregate) == 75


def test_a_slot_that_does_not_answer_keeps_its_counts() -> None:
    aggregate = Aggregate()
    aggregate.add(receiver(slot(counts={"messages": 70}), time=1))
    aggregate.add(receiver(slot(state="lost", holder="", pid=None, died=1), time=2))

    assert messages(aggregate) == 70
    assert aggregate.counts()[0]["deaths"] == 1


def test_a_late_answer_of_a_former_worker_counts_nothing_twice() -> None:
    aggregate = Aggregate()
    aggregate.add(receiver(slot(counts={"messages": 70}), time=1))
    aggregate.add(receiver(slot(generation=2, counts={"messages": 5}), time=2))
    aggregate.add(receiver(slot(counts={"messages": 60}), time=3))
    aggregate.add(receiver(slot(generation=2, counts={"messages": 6}), time=4))

    assert messages(aggregate) == 76


def test_a_snapshot_that_is_older_than_the_last_one_is_ignored() -> None:
    aggregate = Aggregate()
    aggregate.add(receiver(slot(submissions=3, died=2), time=2))
    aggregate.add(receiver(slot(submissions=1, died=0), time=1))

    assert aggregate.counts()[0] == Counter(submissions=3, deaths=2)


def test_a_fleet_that_is_started_again_counts_on() -> None:
    aggregate = Aggregate()
    aggregate.add(receiver(slot(submissions=3, died=2), time=1))
    aggregate.add(receiver(slot(submissions=1, died=0), time=2))
    aggregate.add(receiver(slot(submissions=2, died=1), time=3))

    assert aggregate.counts()[0] == Counter(submissions=5, deaths=3)


def test_a_registry_that_was_emptied_may_count_generations_from_the_start() -> None:
    aggregate = Aggregate()
    aggregate.add(receiver(slot(generation=9, holder="host/a", counts={"messages": 70}), time=1))
    aggregate.add(receiver(slot(generation=1, holder="host/b", counts={"messages": 5}), time=2))

    assert messages(aggregate) == 75


@given(st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 50), st.booleans()), max_size=60))
def test_counters_grow_and_end_at_the_sum_of_all_workers(steps: list[tuple[int, bool, int, bool]]) -> None:
    """Each step: a slot, whether its worker dies first, how much it counts, and whether an old answer comes late."""
    aggregate = Aggregate()
    generations, counts, truth = Counter[int](), Counter[int](), Counter[int]()
    before: dict[int, Counter[str]] = {}
    answers: dict[int, tuple[int, int]] = {}
    for time, (number, dies, more, late) in enumerate(steps):
        if dies:
            generations[number] += 1
            counts[number] = 0
        counts[number] += more
        truth[number] += more
        now = (generations[number], counts[number])
        generation, count = answers.get(number, now) if late else now
        answers[number] = now
        aggregate.add(receiver(slot(number, generation, counts={"messages": count}), time=time))
        if late:
            aggregate.add(receiver(slot(number, now[0], counts={"messages": now[1]}), time=time))

        after = aggregate.counts()
        assert all(after[known][name] >= value for known, names in before.items() for name, value in names.items())
        assert after[number]["messages"] == truth[number]
        before = after
