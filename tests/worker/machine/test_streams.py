"""Streams are opened, claimed, refused and handed on."""

from __future__ import annotations

import pytest

from tests.revisions import drafts
from tests.worker.bench import Bench, Connector
from wallaroo_spark.protocol import (
    NOTHING_PROCESSED,
    REVISIONS,
    V3,
    Ack,
    Error,
    Notify,
    NotifyAck,
    Revision,
)
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.streams import Streams

KEY = StreamKey("", 7)


def accepted(stream_id: int, ref: int = NOTHING_PROCESSED) -> NotifyAck:
    return NotifyAck(True, stream_id, ref)


def refused(stream_id: int, ref: int = NOTHING_PROCESSED) -> NotifyAck:
    return NotifyAck(False, stream_id, ref)


@drafts
def test_in_the_drafts_a_notify_is_not_answered(bench: Bench, revision: Revision) -> None:
    assert bench.join(revision).open(7) == []


@drafts
def test_in_the_drafts_a_commit_between_ok_and_notify_is_acknowledged(bench: Bench, revision: Revision) -> None:
    first = bench.join(revision)
    first.open(7)
    first.messages(7, range(1, 6))
    first.leave()
    second = bench.join(revision)
    bench.run_batch()
    assert second.said(Ack) == []

    assert second.open(7) == [Ack(0, ((7, 5),))]
    assert second.messages(7, range(1, 6)) == []
    third = bench.join(revision, "shop-2")
    assert third.open(7) == []


@drafts
def test_in_the_drafts_a_stream_belongs_to_its_instance(bench: Bench, revision: Revision) -> None:
    one, two = bench.join(revision, "shop-1"), bench.join(revision, "shop-2")
    for connector in (one, two):
        connector.open(7)
        connector.messages(7, [1])

    assert bench.run_batch() == {StreamKey("shop-1", 7): [1], StreamKey("shop-2", 7): [1]}
    assert bench.state.connections.claims == set()


@drafts
def test_in_the_drafts_an_open_stream_cannot_be_notified(bench: Bench, revision: Revision) -> None:
    connector = bench.join(revision)
    connector.open(7)
    connector.raw(Notify(7, "again"))

    assert "NOTIFY of stream 7, which is open" in connector.error
    assert bench.counts["fault:stream-already-open"] == 1


class TestV3:
    def test_a_notify_is_answered_once_the_stream_is_claimed(self, bench: Bench) -> None:
        bench.registry_answers = False
        bench.rewind({KEY: 40})
        bench.registry_answers = True
        connector = bench.join(V3)

        assert connector.open(7) == [accepted(7, 40)]
        assert bench.state.connections.claims == {7}

    def test_all_streams_of_one_read_are_asked_about_in_one_go(self, bench: Bench) -> None:
        connector = bench.join(V3)
        bench.registry_answers = False
        connector.send(connector.session.notify(7, "a"), connector.session.notify(8, "b"))

        assert bench.held_back == [e.AskClaims(0, (7, 8))]
        bench.claims_of_others = {8}
        bench.answer(bench.held_back[0])
        assert connector.said(NotifyAck) == [accepted(7), refused(8)]

    def test_a_stream_of_another_slot_is_refused(self, bench: Bench) -> None:
        bench.claims_of_others = {7}

        assert bench.join(V3).open(7) == [refused(7)]
        assert bench.state.connections.claims == set()

    def test_a_stream_that_is_open_in_another_session_is_refused(self, bench: Bench) -> None:
        one, two = bench.join(V3, "a"), bench.join(V3, "b")
        one.open(7)

        assert two.open(7) == [refused(7)]

    def test_a_stream_that_another_session_asks_for_is_refused(self, bench: Bench) -> None:
        one, two = bench.join(V3, "a"), bench.join(V3, "b")
        bench.registry_answers = False
        one.open(7)

        assert two.open(7) == [refused(7)]
        bench.answer(bench.held_back[0])
        assert one.said(NotifyAck) == [accepted(7)]

    def test_an_open_stream_that_is_notified_again_is_refused_and_stays_open(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)

        assert connector.raw(Notify(7, "again")) == [refused(7)]
        connector.messages(7, [1])
        assert bench.run_batch() == {KEY: [1]}

    def test_an_ended_stream_is_for_another_session_once_all_of_it_is_committed(self, bench: Bench) -> None:
        one, two = bench.join(V3, "a"), bench.join(V3, "b")
        one.open(7)
        one.messages(7, [1, 2])
        one.end(7, 2)
        assert two.open(7) == [refused(7)]

        bench.run_batch()
        assert bench.released == [7]
        assert two.open(7) == [accepted(7, 2)]
        two.messages(7, [3])
        assert bench.run_batch() == {KEY: [3]}

    def test_its_own_session_may_open_an_ended_stream_at_any_time(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)
        connector.messages(7, [1, 2])
        connector.end(7, 2)

        assert connector.open(7) == [accepted(7)]
        connector.messages(7, [2, 3])
        assert bench.run_batch() == {KEY: [1, 2, 3]}

    def test_rows_of_an_ended_session_belong_to_the_next_session(self, bench: Bench) -> None:
        one = bench.join(V3, "a")
        one.open(7)
        one.messages(7, [1, 2])
        one.leave()
        two = bench.join(V3, "b")

        assert two.open(7) == [accepted(7)]
        two.messages(7, [1, 2, 3])
        assert bench.run_batch() == {KEY: [1, 2, 3]}

    def test_a_claim_is_given_back_when_the_stream_is_neither_sent_nor_held(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)
        connector.open(8)
        connector.messages(7, [1])
        connector.leave()
        assert bench.released == [8]

        bench.run_batch()
        assert bench.released == [8, 7]
        assert bench.state.connections.claims == set()

    def test_a_claim_that_nobody_waits_for_any_more_is_given_back(self, bench: Bench) -> None:
        connector = bench.join(V3)
        bench.registry_answers = False
        connector.open(7)
        connector.leave()
        bench.answer(bench.held_back[0])

        assert bench.released == [7]
        assert bench.state.connections.claims == set()

    def test_a_session_that_ended_before_the_answer_is_not_told(self, bench: Bench) -> None:
        connector = bench.join(V3)
        bench.registry_answers = False
        connector.open(7)
        connector.raw(Error("changed my mind"))
        bench.answer(bench.held_back[0])

        assert connector.said(NotifyAck) == []
        assert bench.released == [7]

    @pytest.mark.parametrize("call", ["claimed", "_open_claimed", "_open"])
    def test_the_claims_of_a_session_that_an_error_of_this_program_ends_are_released(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        def fails(*_: object) -> None:
            raise MemoryError("no memory")

        neighbour = bench.join(V3, "neighbour")
        neighbour.open(6)
        connector = bench.join(V3)
        bench.registry_answers = False
        connector.send(connector.session.notify(7, "a"), connector.session.notify(8, "b"))
        with monkeypatch.context() as failing:
            failing.setattr(Streams, call, fails)
            bench.answer(bench.held_back[0])

        assert connector.closed == e.Close(connector.number, at_once=True)
        assert sorted(bench.released) == [7, 8]
        assert bench.state.connections.claims == {6}

    def test_without_a_registry_new_streams_are_refused_and_open_ones_go_on(self, bench: Bench) -> None:
        connector = bench.join(V3)
        connector.open(7)
        bench.registry_answers = False
        connector.open(8)
        bench.do(e.RegistryFailed(0, "Redis is gone", (8,)))

        assert connector.said(NotifyAck) == [accepted(7), refused(8)]
        assert "streams [8] are refused: the registry does not answer: Redis is gone" in bench.warnings()[0]
        connector.messages(7, [1])
        assert bench.run_batch() == {KEY: [1]}

    def test_no_answer_for_a_session_that_is_gone_changes_nothing(self, bench: Bench) -> None:
        connector = bench.join(V3)
        bench.registry_answers = False
        connector.open(7)
        connector.leave()

        assert bench.do(e.RegistryFailed(0, "Redis is gone", (7,))) == []

    def test_a_session_that_asked_and_ended_does_not_stand_in_the_way(self, bench: Bench) -> None:
        one, two = bench.join(V3, "a"), bench.join(V3, "b")
        bench.registry_answers = False
        one.open(7)
        one.leave()
        two.open(7)
        for ask in bench.held_back:
            bench.answer(ask)

        assert two.said(NotifyAck) == [accepted(7)]
        assert bench.state.connections.claims == {7}


class TestLostClaims:
    def stream(self, bench: Bench) -> Connector:
        connector = bench.join(V3)
        connector.open(7)
        connector.messages(7, [1, 2])
        return connector

    def test_a_stream_that_another_slot_has_by_now_is_left_to_it(self, bench: Bench) -> None:
        connector = self.stream(bench)
        bench.do(e.ClaimsLost(frozenset({7, 99})))

        assert connector.closed == e.Close(0)
        assert bench.plan() == {}
        assert bench.state.connections.claims == set()
        assert bench.released == []

    def test_also_when_nobody_sends_it(self, bench: Bench) -> None:
        self.stream(bench).leave()
        bench.do(e.ClaimsLost(frozenset({7})))

        assert bench.plan() == {}
        assert bench.state.buffer.used == 0


@pytest.mark.parametrize("revision", REVISIONS.values(), ids=str)
def test_a_stream_too_many_ends_its_session_and_no_other(bench: Bench, revision: Revision) -> None:
    modest, greedy = bench.join(revision, "modest"), bench.join(revision, "greedy")
    modest.open(1)
    modest.messages(1, [1])
    bench.state.buffer.budget = bench.state.buffer.overhead + 5_000
    greedy.open(2)
    greedy.open(3)
    greedy.open(4)

    assert "this worker has 3 streams, as many as its memoryBudget" in greedy.error
    assert bench.counts["fault:too-many-streams"] == 1
    modest.messages(1, [2])
    key = StreamKey("modest" if revision is not V3 else "", 1)
    assert bench.run_batch() == {key: [1, 2]}
