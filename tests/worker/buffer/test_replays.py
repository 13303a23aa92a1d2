"""Which messages of a stream are new."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import steady
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import U64_MAX, Fault, Flags
from wallaroo_spark.worker.buffer.replays import IncreasingIds, NotIncreasing, OpaqueIds, ReferenceRule, rule_for

UNSTABLE, BOUNDARY, END = Flags.UNSTABLE_REFERENCE, Flags.BOUNDARY, Flags.BOUNDARY | Flags.EOS
KINDS = (0, 0, int(UNSTABLE), int(BOUNDARY), int(END))


def new(rule: ReferenceRule, *ids: int) -> list[int]:
    """The ids that a rule takes for new ones."""
    column = np.array(ids, dtype=np.uint64)
    mask = rule.select(column)
    return column.tolist() if mask is None else column[mask].tolist()


def test_the_option_names_the_rule() -> None:
    assert isinstance(rule_for(True, None), IncreasingIds)
    assert isinstance(rule_for(False, None), OpaqueIds)


def one_by_one(messages: list[tuple[int, int]], last: int | None) -> tuple[list[int], int | None]:
    """The ids of messages (with their flags) that are new, behind ``last``; and the index of the first wrong one."""
    new, highest, sent, unstable = [], last, None, False
    for at, (value, flags) in enumerate(messages):
        repeating = last is not None and (sent is None or sent < last)
        if highest is None or value > highest:
            new.append(value)
            highest = value
        elif value == highest and unstable:
            new += [value] if (last is None or value > last) and flags & END != END else []
        elif not repeating and not (value == highest and flags & BOUNDARY):
            return new, at
        sent = value if sent is None else max(sent, value)
        unstable = bool(flags & UNSTABLE)
    return new, None


class TestIncreasingIds:
    def test_the_first_message_of_a_stream_is_new_whatever_its_id(self) -> None:
        assert new(IncreasingIds(), 0) == [0]
        assert new(IncreasingIds(), U64_MAX) == [U64_MAX]

    def test_nothing_is_new_in_nothing(self) -> None:
        assert new(IncreasingIds()) == []

    def test_an_id_that_is_not_above_the_last_one_is_a_replay(self) -> None:
        rule = IncreasingIds(last=5)

        assert new(rule, 4, 3, 5, 6, 7) == [6, 7]
        rule.resume(0, None)
        assert new(rule, 7) == []
        assert new(rule, 8) == [8]

    @pytest.mark.parametrize("ids", [(1, 5, 3, 6), (1, 5, 5, 6)])
    def test_a_step_back_that_repeats_nothing_is_an_error_and_changes_nothing(self, ids: tuple[int, ...]) -> None:
        rule = IncreasingIds()
        with pytest.raises(NotIncreasing) as caught:
            new(rule, *ids)

        assert (caught.value.at, caught.value.message_id, caught.value.highest) == (2, ids[2], 5)
        assert rule.last is None
        assert new(rule, *ids[:2]) == [1, 5]

    def test_once_all_of_it_was_repeated_ids_increase(self) -> None:
        rule = IncreasingIds(last=5)
        assert new(rule, 2, 5) == []

        with pytest.raises(NotIncreasing):
            new(rule, 4)
        rule.resume(0, None)
        assert new(rule, 4) == []

    def test_a_whole_run_of_replays_leaves_the_last_one_where_it_was(self) -> None:
        rule = IncreasingIds(last=9)

        assert new(rule, 1, 2, 3) == []
        assert rule.last == 9

    def test_a_resume_changes_nothing(self) -> None:
        rule = IncreasingIds(last=5)
        rule.resume(0, None)

        assert new(rule, 5, 6) == [6]

    def test_a_commit_beyond_the_accepted_messages_counts_as_accepted(self) -> None:
        rule = IncreasingIds(last=5)
        rule.commit(8)
        rule.commit(3)

        assert new(rule, 7, 8, 9) == [9]

    def test_a_commit_of_a_new_stream_counts_as_accepted(self) -> None:
        rule = IncreasingIds()
        rule.commit(8)

        assert new(rule, 8, 9) == [9]

    def test_behind_a_rewind_everything_is_new_again(self) -> None:
        rule = IncreasingIds(last=9)
        rule.rewind(4)
        assert new(rule, 4, 5, 6) == [5, 6]

        rule.rewind(None)
        assert new(rule, 0, 1) == [0, 1]

    @steady
    @given(
        st.lists(st.tuples(st.integers(-1, 2), st.sampled_from(KINDS)), max_size=30),
        st.none() | st.integers(0, 12),
        st.data(),
    )
    def test_runs_equal_messages_one_by_one(
        self, steps: list[tuple[int, int]], last: int | None, data: st.DataObject
    ) -> None:
        messages, at = [], data.draw(st.integers(0, 12))
        for step, flags in steps:
            at = max(0, at + step)
            messages.append((at, flags))
        expected, wrong = one_by_one(messages, last)

        rule, found, at, stopped = IncreasingIds(last), [], 0, None
        while at < len(messages) and stopped is None:
            size = data.draw(st.integers(1, len(messages) - at))
            part = messages[at : at + size]
            ids = np.array([value for value, _ in part], dtype=np.uint64)
            try:
                mask = rule.select(ids, np.array([flags for _, flags in part], dtype=np.uint16))
            except NotIncreasing as error:
                stopped = at + error.at
            else:
                found += ids.tolist() if mask is None else ids[mask].tolist()
            at += size

        assert stopped == wrong
        assert found == expected[: len(found)] if wrong is not None else found == expected


class TestOpaqueIds:
    def test_ids_need_not_increase(self) -> None:
        assert new(OpaqueIds(), 9, 2, 7) == [9, 2, 7]

    def test_an_id_equal_to_the_one_before_is_that_message_once_more(self) -> None:
        rule = OpaqueIds()

        assert new(rule, 9, 9, 2) == [9, 2]
        assert new(rule, 2) == []

    def test_nothing_is_new_in_nothing_even_when_a_repetition_is_due(self) -> None:
        rule = OpaqueIds(last=4)
        rule.resume(4, 4)

        assert new(rule) == []
        assert new(rule, 4, 5) == [5]

    def test_messages_after_the_resumed_reference_are_new(self) -> None:
        rule = OpaqueIds(last=4)
        rule.resume(4, 4)

        assert new(rule, 9, 2) == [9, 2]

    def test_the_reference_itself_may_be_sent_again(self) -> None:
        rule = OpaqueIds()
        new(rule, 3, 8, 5)
        rule.commit(3)
        rule.resume(3, 3)

        assert new(rule, 3, 8, 5, 6) == [6]

    def test_a_stream_that_starts_again_may_have_zero_as_its_first_id(self) -> None:
        rule = OpaqueIds()
        rule.resume(0, None)

        assert new(rule, 0, 7) == [0, 7]

    def test_a_sender_that_starts_from_the_beginning_is_skipped_up_to_the_reference(self) -> None:
        rule = OpaqueIds(last=4)
        rule.resume(0, 4)

        assert new(rule, 9, 8) == []
        assert new(rule, 7, 4, 3, 1) == [3, 1]

    def test_a_sender_that_was_told_an_older_reference_is_skipped_too(self) -> None:
        rule = OpaqueIds(last=4)
        rule.resume(9, 4)

        assert new(rule, 8, 4, 3) == [3]

    def test_held_messages_are_recognised_when_they_are_sent_again(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2, 6)
        rule.resume(4, 4)

        assert new(rule, 8, 2) == []
        assert new(rule, 6, 1) == [1]

    def test_a_sender_may_go_on_from_a_message_that_is_held(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2, 6)
        rule.resume(2, 4)

        assert new(rule, 2, 6, 1) == [1]

    def test_a_replay_in_another_order_breaks_the_protocol(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2, 6)
        rule.resume(4, 4)

        with pytest.raises(RemoteProtocolError, match="message 6 was sent where 8 was sent before") as caught:
            new(rule, 6)
        assert caught.value.fields["fault"] is Fault.REPLAY_DIFFERS

    @pytest.mark.parametrize("again", [8, 4])
    def test_an_id_that_tells_where_the_query_stands_may_not_come_back(self, again: int) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2)

        with pytest.raises(RemoteProtocolError, match=f"message {again} was sent before"):
            new(rule, 7, again)

    def test_an_id_that_nobody_needs_any_more_may_come_back(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2)
        rule.commit(2)

        assert new(rule, 4, 8) == [4, 8]

    def test_a_commit_while_a_replay_runs_leaves_the_replay_as_it_is(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2, 6)
        rule.resume(4, 4)
        assert new(rule, 8) == []
        rule.commit(2)

        assert new(rule, 2, 6, 5) == [5]

    def test_a_commit_of_messages_that_are_not_held_skips_up_to_it(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8)
        rule.commit(6)

        assert new(rule, 2, 6) == []
        assert new(rule, 5) == [5]

    def test_a_rewind_to_a_held_reference_drops_the_rows_behind_it(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2, 6)
        rule.rewind(8)

        assert new(rule, 2, 9) == [2, 9]

    def test_a_rewind_to_something_else_forgets_everything(self) -> None:
        rule = OpaqueIds(last=4)
        new(rule, 8, 2, 6)
        rule.rewind(None)

        assert new(rule, 8, 2) == [8, 2]

    @steady
    @given(st.permutations(range(1, 13)), st.data())
    def test_every_message_is_new_once_however_often_it_is_replayed(self, ids: list[int], data: st.DataObject) -> None:
        rule, found, committed, at = OpaqueIds(), [], 0, 0
        while at < len(ids):
            size = data.draw(st.integers(1, len(ids) - at))
            found += new(rule, *ids[at : at + size])
            at += size
            if data.draw(st.booleans()):
                committed = data.draw(st.integers(committed, len(found)))
                if committed:
                    rule.commit(found[committed - 1])
            if data.draw(st.booleans()):
                reference = found[committed - 1] if committed else None
                at = data.draw(st.sampled_from((0, committed)))
                rule.resume(ids[at - 1] if at else 0, reference)

        assert found == ids
