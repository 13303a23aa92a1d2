"""The bookkeeping of references, without sockets."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wallaroo_spark.connector.sending.resend_buffer import MemoryBudget, ResendBuffer, memory_cost
from wallaroo_spark.connector.sending.unacknowledged import UnacknowledgedMessages
from wallaroo_spark.errors import LocalProtocolError, ReplayError
from wallaroo_spark.protocol import DRAFT_BE, U64_MAX, EncodedRun, encode_run


def resend_buffer(
    *ids: int, increasing: bool = True, start: int | None = None, ref: int | None = None, clock: int = 1
) -> ResendBuffer:
    box = ResendBuffer("orders", MemoryBudget(1 << 20), increasing=increasing, start=start, clock=lambda: clock)
    box.resume(ref)
    for message_id in ids:
        put(box, message_id)
    return box


def run_of(*ids: int, size: int = 1) -> EncodedRun:
    return encode_run(DRAFT_BE, 7, ids, [b"x" * size] * len(ids))


def put(ledger: UnacknowledgedMessages, *ids: int) -> None:
    """One run of messages."""
    ledger.append(run_of(*ledger.next_ids(ids, len(ids))))


def again(box: ResendBuffer, most: int = 100) -> list[int]:
    """Everything that is sent again, in order."""
    ids: list[int] = []
    while (run := box.next_resend(most)) is not None:
        assert 0 < run.count <= most
        ids.extend(run.ids)
        box.resent()
        box.validate()
    return ids


def number(box: ResendBuffer, count: int = 1) -> list[int]:
    """Messages that are given no ids; those that they get."""
    ids = list(box.next_ids(None, count))
    box.append(run_of(*ids))
    return ids


class TestMessagesWithoutAnId:
    """An earlier process may have left some with the worker that nobody tells of, and they are not replays of those."""

    def test_they_are_numbered_from_the_time_on(self) -> None:
        assert number(resend_buffer(clock=1000), 3) == [1000, 1001, 1002]
        assert number(resend_buffer(clock=1000, increasing=False), 2) == [1000, 1001]

    def test_they_go_on_behind_what_is_committed_when_that_is_later(self) -> None:
        assert number(resend_buffer(clock=1000, ref=2000)) == [2001]
        assert number(resend_buffer(clock=1000, ref=20)) == [1000]
        assert number(resend_buffer(clock=1000, start=2000)) == [2001]

    def test_where_the_program_gives_ids_the_next_one_follows_the_last(self) -> None:
        box = resend_buffer(17, clock=1000)
        assert number(box, 2) == [18, 19]
        put(box, 30)
        assert number(box) == [31]

    def test_ids_above_those_may_be_given(self) -> None:
        box = resend_buffer(clock=1000)
        assert number(box) == [1000]
        put(box, 2000)
        assert number(box) == [2001]
        with pytest.raises(LocalProtocolError, match="18 is not above 2001"):
            box.next_id(18)

    def test_messages_of_an_earlier_process_may_be_committed_meanwhile(self) -> None:
        box = resend_buffer(clock=1000)
        box.acknowledge(500)
        assert number(box) == [1000]
        box.acknowledge(600)
        assert (box.kept, box.reference) == (1, 600)
        box.acknowledge(1000)
        assert box.done

    @pytest.mark.parametrize("how", ["acknowledge", "resume"])
    def test_messages_of_another_program_do_not_count_as_acknowledged(self, how: str) -> None:
        box = resend_buffer(clock=1000)
        number(box, 3)
        with pytest.raises(LocalProtocolError) as caught:
            getattr(box, how)(5000)
        assert "so another program sends this stream under the same instance name" in caught.value.message
        assert "3 messages of this program are not acknowledged" in caught.value.message
        assert box.kept == 3


class TestWhatAnEarlierProcessSent:
    """The worker may commit it after this one has opened the stream, and before it is sent again."""

    def test_it_may_be_sent_again_and_is_not_kept(self) -> None:
        box = resend_buffer(ref=14)
        box.acknowledge(21)
        for message_id in range(15, 25):
            put(box, message_id)
        assert box.kept == 3
        assert box.next_id(None) == 25
        box.acknowledge(24)
        assert box.done
        box.validate()

    def test_messages_before_the_position_to_resume_from_are_refused(self) -> None:
        box = resend_buffer(ref=14)
        box.acknowledge(21)
        with pytest.raises(LocalProtocolError, match="14 is not above 14"):
            box.next_id(14)

    def test_a_session_that_says_more_is_committed_changes_nothing_for_the_program(self) -> None:
        box = resend_buffer(ref=14)
        box.resume(21)
        put(box, 15)
        assert box.kept == 0

    def test_an_opaque_id_that_was_acknowledged_early_counts_once_it_is_sent(self) -> None:
        box = resend_buffer(9, 3, increasing=False)
        box.acknowledge(8)
        assert box.kept == 2
        put(box, 5)
        put(box, 8)
        assert box.kept == 0
        assert box.reference == 8


class TestNumbering:
    def test_the_first_id_is_one_where_nothing_is_committed(self) -> None:
        assert resend_buffer().next_id(None) == 1

    def test_ids_go_on_behind_the_reference_the_worker_says(self) -> None:
        assert resend_buffer(ref=41).next_id(None) == 42

    def test_ids_go_on_behind_the_callers_reference_where_the_worker_has_none(self) -> None:
        assert resend_buffer(start=9).next_id(None) == 10

    def test_an_id_that_does_not_increase_is_refused_naming_both(self) -> None:
        with pytest.raises(LocalProtocolError, match="17 is not above 17") as caught:
            resend_buffer(17).next_id(17)
        assert caught.value.fields["last"] == 17

    def test_an_id_at_or_below_the_committed_reference_is_refused(self) -> None:
        with pytest.raises(LocalProtocolError, match="5 is not above 100"):
            resend_buffer(ref=100).next_id(5)

    def test_opaque_ids_come_in_any_order(self) -> None:
        assert resend_buffer(17, increasing=False).next_id(3) == 3

    @pytest.mark.parametrize("wanted", [-1, U64_MAX + 1])
    def test_an_id_beyond_64_bits_is_refused(self, wanted: int) -> None:
        with pytest.raises(LocalProtocolError, match="64-bit"):
            resend_buffer(increasing=False).next_id(wanted)

    def test_numbering_past_the_greatest_id_is_refused(self) -> None:
        with pytest.raises(LocalProtocolError, match="64-bit"):
            resend_buffer(U64_MAX).next_id(None)


class TestAcknowledging:
    def test_an_acknowledgement_covers_everything_up_to_and_including_its_reference(self) -> None:
        box = resend_buffer(1, 5, 9)
        box.acknowledge(5)
        assert (box.kept, box.reference) == (1, 5)
        assert not box.done

    def test_a_reference_between_two_ids_covers_those_below_it(self) -> None:
        box = resend_buffer(1, 5, 9)
        box.acknowledge(7)
        assert box.kept == 1

    def test_an_older_acknowledgement_changes_nothing(self) -> None:
        box = resend_buffer(1, 5, 9)
        box.acknowledge(9)
        box.acknowledge(1)
        assert (box.kept, box.reference, box.done) == (0, 9, True)

    def test_an_opaque_acknowledgement_covers_the_messages_sent_before(self) -> None:
        box = resend_buffer(30, 10, 20, increasing=False)
        box.acknowledge(10)
        assert (box.kept, box.reference) == (1, 10)

    def test_an_opaque_acknowledgement_of_an_unknown_id_covers_nothing(self) -> None:
        box = resend_buffer(30, 10, increasing=False)
        box.acknowledge(99)
        assert (box.kept, box.reference) == (2, None)

    def test_acknowledged_bytes_are_given_back_to_the_budget(self) -> None:
        budget = MemoryBudget(1000)
        box = ResendBuffer("orders", budget)
        one, other = run_of(1, 2, size=50), run_of(3)
        box.append(one)
        box.append(other)
        assert budget.held == memory_cost(len(one.data), 2) + memory_cost(len(other.data))
        assert budget.room == 1000 - budget.held
        box.acknowledge(1)
        assert budget.held == memory_cost(len(one.data) // 2) + memory_cost(len(other.data))
        box.acknowledge(2)
        assert budget.held == memory_cost(len(other.data))
        box.clear()
        assert (budget.held, box.kept) == (0, 0)

    def test_a_budget_takes_one_message_of_any_size_when_it_is_empty(self) -> None:
        budget = MemoryBudget(10)
        assert budget.admits(memory_cost(100))
        budget.held = 1
        assert not budget.admits(10)
        assert budget.admits(9)


class TestResuming:
    def test_uncommitted_messages_are_sent_again_in_order(self) -> None:
        box = resend_buffer(1, 2, 3, 4)
        box.resume(2)
        assert box.resend_pending
        assert again(box) == [3, 4]
        assert not box.resend_pending

    def test_a_cut_while_sending_again_starts_over_at_the_reference(self) -> None:
        box = resend_buffer(1, 2, 3, 4)
        box.resume(1)
        assert box.next_resend(1) is not None
        box.resent()
        box.resume(1)
        assert again(box) == [2, 3, 4]

    def test_an_acknowledgement_may_overtake_a_resend(self) -> None:
        box = resend_buffer(1, 2, 3, 4)
        box.resume(None)
        assert box.next_resend(1) is not None
        box.resent()
        box.acknowledge(3)
        assert again(box) == [4]

    def test_a_reference_before_the_kept_messages_cannot_be_served(self) -> None:
        box = resend_buffer(1, 2, 3)
        box.acknowledge(2)
        with pytest.raises(ReplayError, match=r"behind reference 1,.*up to 2.*first kept message is 3") as caught:
            box.resume(1)
        assert caught.value.fields == {"stream": "orders", "reference": 1, "first_held": 3}

    def test_a_stream_cannot_be_sent_again_from_its_beginning_after_an_acknowledgement(self) -> None:
        box = resend_buffer(1)
        box.acknowledge(1)
        with pytest.raises(ReplayError, match=r"from the beginning.*no message is kept"):
            box.resume(None)

    def test_a_reference_beyond_the_sent_messages_is_adopted(self) -> None:
        box = resend_buffer(1, 2)
        box.resume(10)
        assert (box.kept, box.next_id(None)) == (0, 11)

    def test_the_callers_reference_stands_in_as_long_as_the_worker_has_none(self) -> None:
        box = resend_buffer(10, start=9)
        box.resume(None)
        assert again(box) == [10]

    def test_opaque_ids_resume_behind_the_message_with_that_id(self) -> None:
        box = resend_buffer(30, 10, 20, increasing=False)
        box.resume(10)
        assert again(box) == [20]

    def test_opaque_ids_resume_at_the_reference_known_before(self) -> None:
        box = resend_buffer(30, 10, 20, increasing=False)
        box.acknowledge(30)
        box.resume(30)
        assert again(box) == [10, 20]

    def test_an_opaque_reference_that_is_unknown_here_cannot_be_served(self) -> None:
        box = resend_buffer(30, 10, increasing=False)
        with pytest.raises(ReplayError, match="reference 99"):
            box.resume(99)

    def test_an_opaque_stream_opened_at_its_beginning_sends_all_of_it_whatever_is_committed_since(
        self,
    ) -> None:
        box = resend_buffer(increasing=False)
        assert box.notify_reference(20) == 0
        box.resume(20)
        put(box, 30)
        put(box, 10)
        assert (box.kept, box.reference) == (2, None)
        put(box, 20)
        put(box, 40)
        assert (box.kept, box.reference) == (1, 20)
        box.validate()

    def test_an_opaque_stream_starts_at_whatever_reference_the_worker_has(self) -> None:
        box = resend_buffer(increasing=False, ref=77)
        assert (box.reference, box.next_id(None)) == (77, 78)


class TestEnding:
    def test_an_end_is_done_once_written_and_settled_by_an_acknowledgement_after_it(self) -> None:
        box = resend_buffer(1)
        box.ended = True
        box.acknowledge(1)
        assert not box.done
        box.end_written = True
        assert box.done
        assert not box.settled
        box.acknowledge(1)
        assert box.settled
        box.validate()

    def test_an_end_that_is_not_settled_is_written_again_in_the_next_session(self) -> None:
        box = resend_buffer(1)
        box.ended = box.end_written = True
        box.resume(None)
        assert not box.end_written
        assert not box.done

    def test_an_acknowledgement_of_a_part_does_not_settle_the_end(self) -> None:
        box = resend_buffer(1, 2)
        box.ended = box.end_written = True
        box.acknowledge(1)
        assert not box.settled


class ResendBufferAgainstAWorker(RuleBasedStateMachine):
    """Whatever happens to the connection, the worker ends up with every message once and in order."""

    @initialize(increasing=st.booleans())
    def begin(self, increasing: bool) -> None:
        self.budget = MemoryBudget(1 << 30)
        self.box = ResendBuffer("orders", self.budget, increasing=increasing)
        self.box.resume(None)
        self.increasing = increasing
        self.sent: list[int] = []
        self.flying: list[int] = []
        self.taken: list[int] = []
        self.committed = 0

    @precondition(lambda self: not self.box.resend_pending)
    @rule(steps=st.lists(st.integers(1, 3), min_size=1, max_size=6), size=st.integers(0, 50))
    def send(self, steps: list[int], size: int) -> None:
        ids: list[int] = []
        last = self.sent[-1] if self.sent else 0
        for step in steps:
            last += step
            # Without an order to keep, ids go down by turns.
            ids.append(last if self.increasing else (1000 + len(self.sent) + len(ids)) ^ 1)
        run = run_of(*self.box.next_ids(ids, len(ids)), size=size)
        self.box.append(run)
        self.sent.extend(run.ids)
        self.flying.extend(run.ids)

    @rule(most=st.integers(1, 8))
    def send_again(self, most: int) -> None:
        run = self.box.next_resend(most)
        if run is not None:
            assert run.count <= most
            self.box.resent()
            self.flying.extend(run.ids)

    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        for message_id in self.flying[:count]:
            replay = message_id in self.taken
            assert not replay or self.increasing, "with opaque ids nothing may come twice within a session"
            if not replay:
                self.taken.append(message_id)
        del self.flying[:count]

    @rule(behind=st.integers(0, 3))
    def commit(self, behind: int) -> None:
        self.committed = max(self.committed, len(self.taken) - behind)
        if self.committed:
            self.box.acknowledge(self.taken[self.committed - 1])

    @rule(keeps_buffer=st.booleans())
    def cut(self, keeps_buffer: bool) -> None:
        self.flying.clear()
        if not (keeps_buffer and self.increasing):
            del self.taken[self.committed :]
        self.box.resume(self.taken[self.committed - 1] if self.committed else None)

    @invariant()
    def the_bookkeeping_holds(self) -> None:
        if hasattr(self, "box"):
            self.box.validate()
            assert self.taken == self.sent[: len(self.taken)]
            assert self.box.kept >= len(self.sent) - max(self.committed, len(self.taken))

    def teardown(self) -> None:
        if hasattr(self, "box"):
            self.cut(keeps_buffer=False)
            while self.box.resend_pending:
                self.send_again(3)
            self.deliver(len(self.flying))
            self.commit(0)
            assert self.taken == self.sent
            assert self.box.done
            assert self.budget.held == 0


TestResendBufferAgainstAWorker = ResendBufferAgainstAWorker.TestCase


class TestForgottenStreams:
    """A worker without a reference that this process was told; see the option ``streamRetention``."""

    def test_a_stream_of_which_nothing_was_acknowledged_since_it_was_opened_goes_on(self) -> None:
        messages = ResendBuffer("a", MemoryBudget(1 << 20))
        messages.resume(7)
        messages.append(run_of(8, 9))
        messages.resume(None)
        assert (messages.begun_anew, messages.reference, messages.kept) == (True, None, 2)
        assert messages.notify_reference(None) == 0
        run = messages.next_resend(9)
        assert run is not None
        assert list(run.ids) == [8, 9]
        assert messages.next_id(None) >= 10
        messages.validate()

    def test_an_ended_stream_resends_its_unacknowledged_messages(self) -> None:
        messages = ResendBuffer("a", MemoryBudget(1 << 20))
        messages.resume(None)
        messages.append(run_of(1, 2, 3))
        messages.acknowledge(1)
        messages.ended = messages.end_written = True
        messages.resume(None)
        assert (messages.begun_anew, messages.kept, messages.end_written) == (True, 2, False)
        messages.validate()

    def test_an_open_stream_that_was_acknowledged_cannot_have_been_forgotten(self) -> None:
        messages = ResendBuffer("a", MemoryBudget(1 << 20))
        messages.resume(None)
        messages.append(run_of(1, 2))
        messages.acknowledge(1)
        with pytest.raises(ReplayError):
            messages.resume(None)
