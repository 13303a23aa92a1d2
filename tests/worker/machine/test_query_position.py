"""The driver's notices of the query, and their effect on connectors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.revisions import revisions
from tests.worker.bench import Bench, Connector, ids_of, names
from wallaroo_spark.protocol import (
    DRAFT_BE,
    DRAFT_LE,
    V3,
    Ack,
    Error,
    Flags,
    Message,
    Nack,
    Notify,
    Ok,
    Restart,
    Revision,
    faults,
)
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e

DRAFT_KEY = StreamKey("shop-1", 7)


def key(revision: Revision) -> StreamKey:
    return DRAFT_KEY if revision.stream_scope == "instance" else StreamKey("", 7)


def references(acks: list[Ack]) -> list[tuple[int, int]]:
    return [pair for ack in acks for pair in ack.refs]


class TestEphemeralStreamsThatMove:
    """A stream goes on in another slot, which this one is told of by a reference of that slot alone."""

    def start(self, bench: Bench) -> Connector:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.messages(7, [None, None, None], Flags.EPHEMERAL)
        return connector

    def elsewhere(self, bench: Bench, reference: str) -> None:
        """Another slot has had a batch of it, and its reference is the one that the next batch starts behind."""
        bench.offsets[DRAFT_KEY] = reference

    def test_rows_that_were_read_are_not_delivered_again_after_a_missed_commit_notice(self, bench: Bench) -> None:
        connector = self.start(bench)
        assert len(ids_of(bench.find(bench.plan())[DRAFT_KEY])) == 3
        self.elsewhere(bench, "e:1:9:5")
        assert bench.plan() == {}

        connector.messages(7, [None, None], Flags.EPHEMERAL)
        for _ in range(2):
            # Planned twice, as a planner does that asks again; and read twice, as a task does that failed.
            assert bench.plan() == {DRAFT_KEY: "e:0:7:5"}
            assert len(ids_of(bench.find(bench.plan())[DRAFT_KEY])) == 2
        self.elsewhere(bench, "e:1:9:8")
        bench.commit({DRAFT_KEY: "e:1:9:9"})
        assert bench.state.buffer.used == 0

    def test_unread_rows_are_delivered_once(self, bench: Bench) -> None:
        self.start(bench)
        ends = bench.plan(rows=2)
        assert len(ids_of(bench.find(ends)[DRAFT_KEY])) == 2
        self.elsewhere(bench, "e:1:9:5")
        bench.commit({DRAFT_KEY: "e:1:9:6"})

        assert len(bench.run_batch()[DRAFT_KEY]) == 1
        assert bench.run_batch() == {}

    def test_a_query_that_starts_there_delivers_nothing_again(self, bench: Bench) -> None:
        self.start(bench)
        assert len(ids_of(bench.find(bench.plan())[DRAFT_KEY])) == 3
        bench.rewind({DRAFT_KEY: "e:1:9:5"})

        assert bench.plan() == {}
        assert bench.state.buffer.used == 0


@revisions
class TestCommits:
    def test_a_commit_is_acknowledged(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        assert references(connector.said(Ack)) == []

        bench.commit({key(revision): 2})
        assert references(connector.said(Ack)) == [(7, 2)]
        assert bench.run_batch() == {key(revision): [3]}
        assert references(connector.said(Ack)) == [(7, 2), (7, 3)]

    def test_only_the_sessions_that_send_the_stream_are_told(self, bench: Bench, revision: Revision) -> None:
        sender, other = bench.join(revision), bench.join(revision, "shop-2")
        sender.open(7)
        sender.messages(7, [1])
        sender.leave()
        bench.run_batch()

        assert references(sender.said(Ack)) == references(other.said(Ack)) == []
        assert bench.state.status()["streams"] == 0

    def test_an_older_word_is_passed_over(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        bench.commit({key(revision): 1})
        bench.do(e.Committed(bench.epoch, bench.batch, {key(revision): 2}))
        bench.do(e.Committed(bench.epoch - 1, bench.batch + 1, {key(revision): 2}))
        bench.do(e.Committed(bench.epoch + 1, bench.batch + 1, {key(revision): 2}))

        assert references(connector.said(Ack)) == [(7, 1)]
        assert bench.counts["stale-commits"] == 3
        assert bench.state.status()["batch"] == 0

    def test_the_end_of_a_stream_is_answered_by_the_ack_of_its_last_message(
        self, bench: Bench, revision: Revision
    ) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2])
        connector.end(7, 2)
        assert references(connector.said(Ack)) == []

        bench.run_batch()
        assert references(connector.said(Ack)) == [(7, 2)]
        assert bench.state.status()["streams"] == 0

    def test_also_when_all_was_committed_before_it_ended(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2])
        bench.run_batch()
        connector.end(7, 2)

        assert references(connector.said(Ack)) == [(7, 2), (7, 2)]
        assert bench.state.status()["streams"] == 0

    def test_the_end_of_a_stream_of_which_nothing_ever_came_is_not(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        if revision is V3:
            connector.end(7, 0)
            assert bench.state.status()["streams"] == 0
        assert references(connector.said(Ack)) == []

    def test_a_stream_that_ended_may_be_opened_again(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2])
        connector.end(7, 2)
        bench.run_batch()
        connector.open(7, ref=2)
        connector.messages(7, [2, 3])

        assert bench.run_batch() == {key(revision): [3]}


class TestRewinds:
    def test_an_older_word_is_passed_over(self, bench: Bench) -> None:
        bench.rewind({DRAFT_KEY: 5}, batch=3)
        bench.join(DRAFT_BE)
        bench.do(e.Rewound(bench.epoch, 2, {}))
        bench.do(e.Rewound(bench.epoch - 1, 9, {}))

        assert bench.state.buffer.reference(DRAFT_KEY) == 5
        assert bench.counts["stale-commits"] == 2

    def test_a_query_that_goes_on_where_it_was_changes_nothing(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        bench.commit({DRAFT_KEY: 1})
        frames = len(connector.frames)
        bench.rewind({DRAFT_KEY: 1}, batch=0)

        assert connector.frames[frames:] == []
        assert bench.run_batch() == {DRAFT_KEY: [2, 3]}

    @revisions
    def test_a_query_that_is_ahead_acknowledges_its_committed_messages(self, bench: Bench, revision: Revision) -> None:
        connector = bench.join(revision)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        bench.rewind({key(revision): 2})
        assert references(connector.said(Ack)) == [(7, 2)]

        bench.rewind({key(revision): 5})
        assert references(connector.said(Ack)) == [(7, 2), (7, 5)]
        connector.messages(7, [4, 5, 6])
        assert bench.run_batch() == {key(revision): [6]}

    def test_in_draft_le_a_stream_is_sent_again_behind_a_nack(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_LE)
        for stream_id in (7, 8):
            connector.open(stream_id)
            connector.messages(stream_id, [1, 2, 3])
        bench.commit({DRAFT_KEY: 2, StreamKey("shop-1", 8): 2})
        bench.rewind({DRAFT_KEY: 1, StreamKey("shop-1", 8): 2})

        assert connector.said(Nack) == [Nack(0, 7, 1)]
        assert connector.closed is None
        connector.session.streams.notify(7, "orders")
        connector.session.credits.overdraw()
        connector.send(DRAFT_LE.encode(Notify(7, "orders", 1)))
        connector.messages(7, [2, 3])
        assert bench.run_batch() == {DRAFT_KEY: [2, 3], StreamKey("shop-1", 8): [3]}

    def test_between_nack_and_notify_messages_are_ignored(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_LE)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        bench.commit({DRAFT_KEY: 2})
        ahead = connector.revision.encode(Message(7, 4, b"x"))
        ended = connector.revision.encode(Message(7, 5, b"x", Flags.EOS))
        bench.rewind({})
        connector.send(ahead, ended)

        assert bench.plan() == {}
        assert connector.error == ""
        assert bench.state.activity()[0]["open"] == 1

    @pytest.mark.parametrize("revision", [DRAFT_BE, V3], ids=str)
    def test_elsewhere_the_session_is_restarted(self, bench: Bench, revision: Revision) -> None:
        connector, other = bench.join(revision), bench.join(revision, "shop-2")
        connector.open(7)
        connector.open(8)
        connector.messages(7, [1, 2, 3])
        connector.messages(8, [1, 2, 3])
        other.open(9)
        bench.run_batch()
        bench.rewind({key(revision): 1})

        assert must_come_back(connector)
        connector.raw(Notify(12, "orders"))
        assert not must_come_back(other)
        assert bench.state.status()["streams"] == 1
        connector.leave()
        again = bench.join(revision)
        again.open(7)
        again.messages(7, [1, 2, 3])
        assert bench.run_batch() == {key(revision): [2, 3]}

    def test_a_stream_that_has_ended_is_sent_again_too(self, bench: Bench) -> None:
        be, le, v3 = bench.join(DRAFT_BE, "be"), bench.join(DRAFT_LE, "le"), bench.join(V3, "v3")
        bystander = bench.join(V3, "bystander")
        for connector in (be, le, v3):
            connector.open(7)
            connector.messages(7, [1, 2])
            connector.end(7, 2)
        bystander.open(8)
        bench.run_batch()
        assert bench.state.status()["streams"] == 1
        bench.rewind({})

        assert must_come_back(be)
        assert must_come_back(v3)
        assert le.said(Nack) == [Nack(0, 7, 0)]
        assert not must_come_back(bystander)

    def test_a_stream_that_its_session_has_not_opened_yet_is_sent_again_too(self, bench: Bench) -> None:
        bench.rewind({StreamKey("be", 7): 5, StreamKey("le", 7): 5, StreamKey("", 7): 5})
        be, le, v3 = bench.join(DRAFT_BE, "be"), bench.join(DRAFT_LE, "le"), bench.join(V3, "v3")
        other = bench.join(DRAFT_BE, "other")
        bench.rewind({StreamKey("be", 7): 4, StreamKey("le", 7): 4, StreamKey("", 7): 4})

        assert must_come_back(be)
        assert must_come_back(v3)
        assert faults.is_later(le.error)
        assert other.said(Restart) == []

    def test_rows_that_nobody_sends_are_dropped(self, bench: Bench) -> None:
        connector = bench.join(DRAFT_BE)
        connector.open(7)
        connector.messages(7, [1, 2, 3])
        bench.commit({DRAFT_KEY: 2})
        connector.leave()
        bench.rewind({})

        assert bench.state.buffer.used == 0
        assert connector.said(Restart) == []

    def test_a_range_that_was_planned_is_filled_again(self, bench: Bench) -> None:
        bench.rewind({DRAFT_KEY: 2})
        planned = {DRAFT_KEY: 5}
        assert bench.find(planned) == {DRAFT_KEY: None}
        connector = bench.join(DRAFT_BE)
        connector.open(7, ref=2)
        connector.messages(7, [3, 4])
        assert bench.find(planned) == {DRAFT_KEY: None}
        connector.messages(7, [5, 6])

        found = bench.find(planned)[DRAFT_KEY]
        assert found is not None
        assert [part.high - part.low for part, _ in found.slices] == [2, 1]

    def test_opaque_ids_survive_a_commit_between_ok_and_notify(self) -> None:
        bench = Bench(message_ids="opaque")
        first = bench.join(DRAFT_BE)
        first.open(7)
        first.messages(7, [9, 4, 6])
        ends = bench.plan()
        first.leave()
        second = bench.join(DRAFT_BE)
        bench.commit(ends)
        second.open(7)
        second.messages(7, [9, 4, 6, 2])

        assert second.said(Ok)[0].streams == ()
        assert bench.run_batch() == {DRAFT_KEY: [2]}

    def test_with_opaque_ids_nothing_is_acknowledged_before_it_is_repeated(self) -> None:
        bench = Bench(message_ids="opaque")
        first = bench.join(DRAFT_BE)
        first.open(7)
        first.messages(7, [9, 4, 6])
        first.leave()
        second = bench.join(DRAFT_BE)
        second.open(7)
        bench.commit({DRAFT_KEY: 4})
        assert references(second.said(Ack)) == []
        second.messages(7, [9, 4])
        assert references(second.said(Ack)) == []
        second.messages(7, [6, 2])

        assert references(second.said(Ack)) == [(7, 4)]
        assert bench.run_batch() == {DRAFT_KEY: [6, 2]}
        assert references(second.said(Ack)) == [(7, 4), (7, 2)]

    def test_with_opaque_ids_a_commit_before_notify_is_told_once_it_was_passed(self) -> None:
        bench = Bench(message_ids="opaque")
        bench.rewind({DRAFT_KEY: 9})
        connector = bench.join(DRAFT_BE)
        bench.commit({DRAFT_KEY: 6})
        connector.open(7, ref=9)
        assert references(connector.said(Ack)) == []
        connector.messages(7, [4, 6])
        assert references(connector.said(Ack)) == [(7, 6)]
        connector.messages(7, [2])

        assert bench.run_batch() == {DRAFT_KEY: [2]}
        bench.validate()


def must_come_back(connector: Connector) -> bool:
    """Whether a session was ended in the way that makes its connector connect again: v3 knows a plain close best."""
    if connector.revision is V3:
        assert connector.said(Restart) == connector.said(Error) == []
        return connector.closed == e.Close(connector.number)
    return connector.said(Restart) == [Restart()] and connector.closed is None


class TestStopping:
    def test_v3_sessions_are_sent_restart_where_the_option_asks_for_it(self, make_bench: Callable[..., Bench]) -> None:
        bench = make_bench(v3_leave="restart")
        rewound, stopped = bench.join(V3, "rewound"), bench.join(V3, "stopped")
        rewound.open(7)
        rewound.messages(7, [1, 2])
        bench.run_batch()
        bench.rewind({})
        assert rewound.said(Restart) == [Restart()]
        assert rewound.closed is None
        assert stopped.said(Restart) == []

        bench.do(e.Stopping("the receiver stops"))
        assert stopped.said(Restart) == [Restart()]
        assert stopped.closed is None

    def test_bytes_of_a_closed_connection_change_nothing(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)
        bench.do(e.Stopping("the receiver stops"))

        assert connector.messages(7, [1, 2]) == []
        assert connector.open(8) == []
        assert bench.plan() == {}

    def test_where_there_is_a_nack_each_stream_gets_one_with_its_committed_reference(self, bench: Bench) -> None:
        bench.rewind({StreamKey("le", 8): 40})
        connector = bench.join(DRAFT_LE, "le")
        for stream_id in (7, 8, 9):
            connector.open(stream_id)
        connector.messages(7, [1, 2, 3])
        connector.messages(8, [41])
        connector.end(9, 0)
        bench.commit({StreamKey("le", 7): 2})
        before = len(connector.frames)
        bench.do(e.Stopping("the receiver stops"))

        later = Error(faults.later("the receiver stops"))
        assert connector.frames[before:] == [Nack(0, 7, 2), Nack(0, 8, 40), Nack(0, 9, 0), later]

    def test_every_session_is_told_to_go(self, bench: Bench) -> None:
        be, le, v3 = bench.join(DRAFT_BE, "be"), bench.join(DRAFT_LE, "le"), bench.join(V3, "v3")
        bench.registry_answers = False
        asking, silent = bench.connect(DRAFT_BE), bench.connect(DRAFT_BE)
        asking.hello()
        bench.do(e.Stopping("the receiver stops"))

        assert must_come_back(be)
        assert must_come_back(v3)
        for connector in (le, asking):
            assert connector.error == faults.later("the receiver stops")
            assert connector.closed is not None
        assert silent.closed is not None
        assert bench.state.status()["sessions"] == 0

    def test_sessions_that_have_ended_are_not_told_again(self, bench: Bench) -> None:
        ended = bench.join(DRAFT_BE)
        ended.raw(Error("changed my mind"))
        frames = len(ended.frames)
        bench.do(e.Stopping("the receiver stops"))

        assert ended.frames[frames:] == []

    def test_a_new_connector_is_told_to_come_back(self, bench: Bench) -> None:
        bench.do(e.Stopping("the receiver stops"))
        late = bench.connect(DRAFT_BE)

        assert names(late.hello()) == ["ERROR"]
        assert faults.is_later(late.error)

    def test_a_connector_that_does_not_leave_is_cut_off(self, bench: Bench) -> None:
        stubborn = bench.join(DRAFT_BE)
        bench.do(e.Tick(100.0))
        bench.do(e.Stopping("the receiver stops"))
        bench.do(e.Tick(104.9))
        assert stubborn.closed is None

        bench.do(e.Tick(105.0))
        assert stubborn.closed == e.Close(0, at_once=True)
        assert bench.do(e.Tick(106.0)) == []
