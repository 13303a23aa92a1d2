"""A plan takes only what workers offer from Spark's own start, and costs one round of questions where nothing is new.

The workers here are the product's own buffers, in which messages are held as a worker takes them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion, StreamOffer
from wallaroo_spark.references import Reference, References, StreamKey, flatten, merge, ranges
from wallaroo_spark.source.planner import MOST_ROUNDS, Inquiry, Limits, Plan, Uncommitted

A, B = StreamKey("shop", 1), StreamKey("shop", 2)


@dataclass
class Slot:
    """A slot that answers as a worker does: messages of one byte each, ids from 1, by stream."""

    streams: dict[StreamKey, int] = field(default_factory=dict)
    committed: dict[StreamKey, int] = field(default_factory=dict)
    asked: list[PlanQuestion] = field(default_factory=list)

    def plan(self, question: PlanQuestion) -> PlanAnswer:
        question = PlanQuestion.decode(question.encode())
        self.asked.append(question)
        starts: dict[StreamKey, Reference | None] = {
            key: question.starts.get(key, self.committed.get(key)) for key in self.streams
        }
        left = {key: last - int(starts[key] or 0) for key, last in self.streams.items()}
        left = {key: count for key, count in left.items() if count > 0}
        whole = sum(left.values())
        limit = min((bound for bound in (question.max_rows, question.max_bytes) if bound is not None), default=whole)
        taken = {
            key: count if limit >= whole else min(count, max(1, limit * count // whole)) for key, count in left.items()
        }
        return PlanAnswer(
            {
                key: StreamOffer(starts[key], int(starts[key] or 0) + count, count, count)
                for key, count in taken.items()
            },
            whole,
            whole,
            (),
            [key for key, start in question.starts.items() if key not in taken and self.committed.get(key) != start],
        )


class Planner:
    """Plans one batch after the other, as the stream reader does; commits reach the slots when a test says so."""

    def __init__(self, slots: Mapping[int, Slot]) -> None:
        self.slots = slots
        self.start: dict[str, dict[str, Reference]] = {}
        self.uncommitted = Uncommitted()
        self.rounds = 0

    def plan(self, limits: Limits | None = None) -> Plan:
        inquiry = Inquiry(self.slots, self.start, limits or Limits(), self.uncommitted)
        self.rounds = 0
        while questions := dict(inquiry.questions):
            self.rounds += 1
            for slot, question in questions.items():
                inquiry.answer(slot, self.slots[slot].plan(question))
        return inquiry.plan()

    def take(self, plan: Plan) -> None:
        self.start = merge(self.start, plan.ends)

    def tell(self, references: References | None = None) -> None:
        for slot in self.slots.values():
            slot.committed.update({key: int(end) for key, end in flatten(references or self.start).items()})


STREAMS = st.dictionaries(st.integers(1, 8), st.integers(0, 60), max_size=8)


@settings(deadline=None)
@given(
    STREAMS,
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
    st.integers(1, 40) | st.none(),
    st.integers(1, 40) | st.none(),
    st.lists(st.booleans(), max_size=40),
)
def test_batches_keep_their_limits_and_every_message_has_its_turn(
    streams: dict[int, int], homes: list[int], max_rows: int | None, max_bytes: int | None, told: list[bool]
) -> None:
    slots = {
        slot: Slot({StreamKey("shop", name): last for name, last in streams.items() if homes[name - 1] == slot})
        for slot in range(3)
    }
    limits = Limits(max_rows, max_bytes)
    # Every stream may give one message for any share, so that none of many streams waits forever.
    most = min((bound for bound in (max_rows, max_bytes) if bound), default=10**6) + len(streams)
    planner = Planner(slots)
    left = sum(streams.values())
    while not (plan := planner.plan(limits)).empty:
        before = planner.start
        planner.take(plan)
        planned = ranges(before, planner.start)
        taken = sum(int(one.end) - int(one.start or 0) for one in planned)
        assert all(int(one.end) > int(one.start or 0) for one in planned)
        assert 0 < taken == plan.rows <= most
        assert plan.complete
        left -= taken
        # Commit notices arrive whenever they do, or not at all.
        if told and told.pop():
            planner.tell()

    assert left == 0
    assert planner.start.get("shop", {}) == {str(name): last for name, last in streams.items() if last}


def test_one_round_is_enough_when_workers_know_the_start_or_are_told_it() -> None:
    planner = Planner({0: Slot({A: 5}), 1: Slot({B: 7})})
    planner.take(planner.plan())
    assert planner.rounds == 1
    for slot, key in ((0, A), (1, B)):
        planner.slots[slot].streams[key] += 3

    # No commit notice has arrived: the streams that were planned are named, and no others.
    assert planner.plan().ends == {"shop": {"1": 8, "2": 10}}
    assert planner.rounds == 1
    assert [planner.slots[slot].asked[-1].starts for slot in (0, 1)] == [{A: 5}, {B: 7}]


def test_streams_that_are_not_read_are_not_named_once_their_commit_has_arrived() -> None:
    slot = Slot({A: 5, B: 7})
    planner = Planner({0: slot})
    planner.take(planner.plan())
    assert planner.plan().empty
    assert planner.plan().empty
    assert slot.asked[-1].starts == {A: 5, B: 7}
    planner.tell()
    planner.plan()
    planner.plan()

    assert slot.asked[-1].starts == {}


def test_a_worker_that_assumes_an_older_start_is_asked_again_with_the_true_one_for_that_stream_alone() -> None:
    planner = Planner({0: Slot({A: 5, B: 7})})
    planner.start = {"shop": {"1": 4}}

    plan = planner.plan()

    assert plan.ends == {"shop": {"1": 5, "2": 7}}
    assert plan.rows == 1 + 7
    assert planner.rounds == 2
    assert planner.slots[0].asked[-1].starts == {A: 4}


def test_a_worker_that_has_taken_over_knows_nothing_and_is_asked_for_no_row_twice() -> None:
    planner = Planner({0: Slot({A: 5})})
    planner.take(planner.plan())
    planner.slots = {0: Slot({A: 9, B: 2})}

    plan = planner.plan()

    assert (plan.ends, plan.rows) == ({"shop": {"1": 9, "2": 2}}, 4 + 2)
    # A planner that begins anew, beside workers whose commit notices are late, finds the same.
    planner.uncommitted = Uncommitted()
    assert planner.plan() == plan
    assert planner.rounds == 2


def test_a_stream_of_which_a_worker_can_assume_no_start_is_named() -> None:
    class Elsewhere(Slot):
        def plan(self, question: PlanQuestion) -> PlanAnswer:
            if A in question.starts:
                return super().plan(question)
            self.asked.append(question)
            return PlanAnswer(unknown=[A])

    planner = Planner({0: Elsewhere({A: 5})})
    planner.start = {"shop": {"1": 3}}

    assert planner.plan().ends == {"shop": {"1": 5}}
    assert [one.starts for one in planner.slots[0].asked] == [{}, {A: 3}]


def test_one_worker_with_rows_is_asked_once_under_a_limit_and_several_twice() -> None:
    planner = Planner({0: Slot({A: 50}), 1: Slot()})
    assert planner.plan(Limits(max_rows=20)).rows == 20
    assert planner.rounds == 1
    planner.slots[1].streams[B] = 50

    assert planner.plan(Limits(max_rows=20)).ends == {"shop": {"1": 10, "2": 10}}
    assert planner.rounds == 2
    # The second question names no more streams than the first.
    assert planner.slots[0].asked[-1].starts == planner.slots[0].asked[-2].starts


def test_a_stream_about_which_worker_and_planner_never_agree_is_left_to_a_later_plan() -> None:
    class Restless(Slot):
        """Has one more stream with a wrong start each time it is asked."""

        def plan(self, question: PlanQuestion) -> PlanAnswer:
            self.streams[StreamKey("shop", 100 + len(self.asked))] = 9
            return super().plan(question)

    slot = Restless({A: 5})
    planner = Planner({0: slot})
    planner.start = {"shop": {str(100 + number): 4 for number in range(100)}}

    plan = planner.plan()

    assert len(slot.asked) == MOST_ROUNDS
    assert not plan.complete
    assert plan.ends["shop"] == {"1": 5, **{str(100 + number): 9 for number in range(MOST_ROUNDS - 1)}}
