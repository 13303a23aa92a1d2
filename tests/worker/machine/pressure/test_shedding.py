"""A full buffer that nothing would leave gives way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker.bench import Bench, Connector, ids_of
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, V3, Flags, Nack, Restart
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e

BUDGET = 1 << 20
UNSTABLE = Flags.UNSTABLE_REFERENCE


@pytest.fixture
def small(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench(memory_budget=BUDGET)


def sender(bench: Bench, instance: str, revision: object = DRAFT_BE) -> Connector:
    connector = bench.join(revision, instance)  # type: ignore[arg-type]  # a revision
    connector.open(1)
    return connector


def fill(connector: Connector, total: int, flags: Flags = Flags.NONE, first: int = 1, size: int = 50_000) -> int:
    """Send messages until so much is held; the id behind the last."""
    while connector.bench.state.buffer.used < total and connector.error == "":
        connector.messages(1, [first], flags, size)
        first += 1
    return first


def wait_for(bench: Bench, instance: str, end: int, start: int | None = None) -> PlannedRange:
    planned = PlannedRange(StreamKey(instance, 1), start, end)
    bench.do(e.Wanted((planned,)))
    return planned


class TestUnstableTails:
    def test_a_stream_that_never_comes_to_a_stable_reference_is_told_so(self, small: Bench) -> None:
        other, endless = sender(small, "other"), sender(small, "endless")
        fill(endless, BUDGET, UNSTABLE)

        assert "stream 1 has sent" in endless.error
        assert "send stable references (a BOUNDARY will do)" in endless.error
        assert small.counts["streams-too-large"] == 1
        assert "stable references" in small.warnings()[0]
        assert small.state.buffer.used == 0
        assert not other.paused
        other.messages(1, [1])
        assert small.run_batch() == {StreamKey("other", 1): [1]}

    def test_the_one_that_has_sent_most_goes_first(self, small: Bench) -> None:
        little, much = sender(small, "little"), sender(small, "much")
        fill(little, BUDGET // 4, UNSTABLE)
        fill(much, BUDGET, UNSTABLE)

        assert much.error
        assert little.error == ""
        little.messages(1, [1000])
        assert len(small.run_batch()[StreamKey("little", 1)]) > 3

    def test_as_long_as_something_can_be_committed_nobody_is_sent_away(self, small: Bench) -> None:
        endless, other = sender(small, "endless"), sender(small, "other")
        other.messages(1, [1])
        fill(endless, BUDGET * 3 // 4, UNSTABLE)
        assert endless.error == ""
        assert endless.paused

        small.run_batch()
        assert "stable references" in endless.error

    def test_an_unstable_rest_that_nobody_sends_is_dropped(self, small: Bench) -> None:
        gone = sender(small, "gone")
        gone.messages(1, [1])
        fill(gone, BUDGET * 3 // 4, UNSTABLE, first=2)
        gone.leave()
        small.run_batch()

        assert small.state.buffer.used == 0
        assert small.state.status()["streams"] == 0

    def test_stable_rows_are_never_dropped_for_it(self, small: Bench) -> None:
        stream = sender(small, "stable")
        last = fill(stream, BUDGET * 3 // 4)

        assert stream.error == ""
        assert small.run_batch() == {StreamKey("stable", 1): list(range(1, last))}


class TestReplays:
    def test_streams_that_no_read_waits_for_make_room_the_largest_first(self, small: Bench) -> None:
        large, little, needed = sender(small, "large"), sender(small, "little"), sender(small, "needed")
        little.messages(1, [1], size=100_000)
        fill(large, BUDGET * 3 // 4)
        planned = wait_for(small, "needed", 12)
        needed.messages(1, range(1, 11), size=30_000)

        assert small.counts["shed-streams"] == 1
        assert not needed.paused
        needed.messages(1, range(11, 13), size=30_000)
        assert ids_of(small.state.buffer.find(planned)) == list(range(1, 13))
        assert large.said(Restart) == []

        small.do(e.Wanted(()))
        assert large.said(Restart) == [Restart()]
        assert little.said(Restart) == []

    def test_no_message_of_a_dropped_stream_is_accepted_while_a_read_waits(self, small: Bench) -> None:
        large, needed = sender(small, "large", V3), sender(small, "needed")
        last = fill(large, BUDGET * 3 // 4)
        wait_for(small, "needed", 12)
        needed.messages(1, range(1, 11), size=30_000)
        assert small.counts["shed-streams"] == 1
        used = small.state.buffer.used

        large.messages(1, range(last, last + 10), size=30_000)
        large.end(1, last + 9)
        assert small.state.buffer.used == used
        assert large.error == ""
        assert small.state.buffer.find(PlannedRange(StreamKey("", 1), None, last)) is None

    def test_dropped_rows_are_requested_at_once_when_a_read_waits_for_them(self, small: Bench) -> None:
        large, needed = sender(small, "large"), sender(small, "needed")
        fill(large, BUDGET * 3 // 4)
        wait_for(small, "needed", 12)
        needed.messages(1, range(1, 11), size=30_000)
        wait_for(small, "needed", 12, 1)
        assert large.said(Restart) == []

        wait_for(small, "large", 3)
        assert large.said(Restart) == [Restart()]

    def test_dropped_rows_are_sent_again(self, small: Bench) -> None:
        large, needed = sender(small, "large", DRAFT_LE), sender(small, "needed")
        last = fill(large, BUDGET * 3 // 4)
        wait_for(small, "needed", 12)
        needed.messages(1, range(1, 11), size=30_000)
        needed.messages(1, range(11, 13), size=30_000)

        assert large.said(Nack) == []
        small.do(e.Wanted(()))
        assert large.said(Nack) == [Nack(0, 1, 0)]
        assert small.run_batch() == {StreamKey("needed", 1): list(range(1, 13))}
        large.open(1)
        large.messages(1, range(1, last))
        assert small.run_batch() == {StreamKey("large", 1): list(range(1, last))}

    def test_committed_rows_that_were_dropped_are_not_delivered_again(self, small: Bench) -> None:
        large, needed = sender(small, "large", DRAFT_LE), sender(small, "needed")
        last = fill(large, BUDGET * 3 // 4)
        ends = small.plan()
        wait_for(small, "needed", 12)
        needed.messages(1, range(1, 11), size=30_000)
        small.do(e.Wanted(()))
        small.commit(ends)
        large.open(1)
        large.messages(1, range(1, last + 1))

        assert small.run_batch()[StreamKey("large", 1)] == [last]

    @pytest.mark.parametrize("revision", [DRAFT_BE, V3], ids=str)
    def test_rows_that_nobody_sends_are_dropped_without_a_message_to_a_peer(
        self, small: Bench, revision: object
    ) -> None:
        gone, needed = sender(small, "gone", revision), sender(small, "needed")
        fill(gone, BUDGET * 3 // 4)
        gone.leave()
        wait_for(small, "needed", 12)
        needed.messages(1, range(1, 11), size=30_000)

        assert small.counts["shed-streams"] == 1
        assert small.released == ([1] if revision is V3 else [])
        assert needed.error == ""

    def test_rows_that_cannot_be_sent_again_are_dropped_last(self, small: Bench) -> None:
        passing, lasting, needed = sender(small, "passing", DRAFT_LE), sender(small, "lasting"), sender(small, "needed")
        fill(passing, BUDGET // 2, Flags.EPHEMERAL)
        fill(lasting, BUDGET * 3 // 4)
        wait_for(small, "needed", 24)
        needed.messages(1, range(1, 13), size=30_000)
        assert small.counts["shed-streams"] == 1
        assert StreamKey("passing", 1) in small.plan()

        needed.messages(1, range(13, 22), size=30_000)
        assert small.counts["shed-streams"] == 2
        assert passing.error == ""
        assert passing.said(Nack) == []
        assert StreamKey("passing", 1) not in small.plan()
        small.do(e.Wanted(()))
        assert lasting.said(Restart) == [Restart()]

    def test_a_range_that_is_complete_is_left_to_its_reader(self, small: Bench) -> None:
        other, needed = sender(small, "other"), sender(small, "needed")
        fill(other, BUDGET * 3 // 4)
        wait_for(small, "needed", 12)
        needed.send(*(needed.message(1, number, size=30_000) for number in range(1, 13)))

        assert small.state.status()["pressure"] == "hard"
        assert small.counts.get("shed-streams", 0) == 0

    def test_a_range_that_does_not_fit_ends_its_session_with_the_reason(self, small: Bench) -> None:
        needed, other = sender(small, "needed"), sender(small, "other")
        wait_for(small, "needed", 1000)
        fill(needed, 2 * BUDGET)

        assert "a read waits for a part of stream 1 that does not fit" in needed.error
        assert f"memoryBudget is {BUDGET}" in needed.error
        assert small.counts["streams-too-large"] == 1
        assert small.state.buffer.used == 0
        assert not other.paused

    def test_also_when_its_session_is_gone_meanwhile(self, small: Bench) -> None:
        needed = sender(small, "needed")
        last = fill(needed, BUDGET)
        needed.leave()
        wait_for(small, "needed", last + 10)

        assert small.state.buffer.used == 0
        assert small.state.status()["streams"] == 0

    def test_a_wait_below_the_budget_costs_nobody_anything(self, small: Bench) -> None:
        other = sender(small, "other")
        fill(other, BUDGET * 3 // 4)
        wait_for(small, "missing", 12)

        assert small.counts.get("shed-streams", 0) == 0
        assert len(small.plan()) == 1
