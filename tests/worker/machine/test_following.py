"""A worker is told the references of the scopes that it follows, asks for those of new ones, and keeps no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.revisions import drafts, revisions
from tests.worker.bench import Bench, Connector
from wallaroo_spark.inner.calls import FollowedScopes
from wallaroo_spark.protocol import DRAFT_BE, V3, Error, NotifyAck, Ok, Revision, faults
from wallaroo_spark.references import PlannedRange, Reference, StreamKey
from wallaroo_spark.worker.buffer.following import Following
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.handshake import REFERENCES_SECONDS

KEY = StreamKey("shop-1", 7)


def key_of(revision: Revision) -> StreamKey:
    return StreamKey("", 7) if revision is V3 else KEY


def tell(bench: Bench, references: dict[StreamKey, Reference], scopes: list[str], batch: int, cursor: int) -> None:
    """An answer of the driver, as a test decides."""
    bench.do(e.Committed(bench.epoch, batch, dict(references), scopes=scopes, cursor=cursor))


def waiting(bench: Bench, revision: Revision = DRAFT_BE) -> Connector:
    """A connector that has said HELLO to a worker whose driver does not answer."""
    bench.driver_answers = False
    connector = bench.connect(revision)
    assert connector.hello() == []
    return connector


def followed(bench: Bench) -> list[str]:
    return list(bench.state.connections.following.answer(0, everything=False).new)


@revisions
def test_a_handshake_waits_for_the_references_of_its_scope(bench: Bench, revision: Revision) -> None:
    key = key_of(revision)
    bench.rewind({key: 40}, 3)
    connector = waiting(bench, revision)
    assert followed(bench) == [key.scope]

    bench.tell_scopes()
    assert len(connector.said(Ok)) == 1
    connector.open(7, 40)
    told = connector.said(NotifyAck) if revision is V3 else connector.said(Ok)[0].streams
    assert [one.ref for one in told] == [40]


def test_a_handshake_that_waits_too_long_ends(bench: Bench) -> None:
    connector = waiting(bench)
    bench.do(e.Tick(REFERENCES_SECONDS - 1.0))
    assert connector.said(Error) == []
    bench.do(e.Tick(REFERENCES_SECONDS + 1.0))
    assert faults.is_later(connector.error)
    assert "has not told the committed references of 'shop-1' in time" in connector.error


def test_a_connector_that_leaves_while_it_waits_leaves_nothing_behind(bench: Bench) -> None:
    waiting(bench).leave()
    bench.do(e.Tick(1.0))
    assert (followed(bench), bench.unassigned) == ([], ["shop-1"])
    bench.tell_scopes()


def test_an_answer_that_is_older_than_what_was_told_is_not_taken(bench: Bench) -> None:
    bench.rewind({KEY: 40}, 3)
    connector = waiting(bench)
    tell(bench, {KEY: 30}, ["shop-1"], batch=2, cursor=1)
    assert connector.said(Ok) == []
    assert bench.counts["stale-commits"] == 1

    tell(bench, {KEY: 50}, ["shop-1"], batch=4, cursor=1)
    assert [stream.ref for stream in connector.said(Ok)[0].streams] == [50]


def test_an_answer_of_another_query_is_not_taken(bench: Bench) -> None:
    connector = waiting(bench)
    for epoch in (bench.epoch - 1, bench.epoch + 1):
        bench.do(e.Committed(epoch, 5, {KEY: 30}, scopes=["shop-1"], cursor=1))
    assert connector.said(Ok) == []


def test_a_notice_whose_sender_has_not_heard_of_the_question_is_no_answer(bench: Bench) -> None:
    connector = waiting(bench)
    tell(bench, {KEY: 30}, ["shop-1"], batch=0, cursor=0)
    bench.do(e.Rewound(bench.epoch, 1, {KEY: 30}, scopes=["shop-1"], cursor=0))
    assert connector.said(Ok) == []
    assert KEY not in bench.state.buffer.committed

    tell(bench, {KEY: 30}, ["shop-1"], batch=1, cursor=1)
    assert [stream.ref for stream in connector.said(Ok)[0].streams] == [30]


def test_references_of_scopes_that_are_not_followed_are_passed_over(bench: Bench) -> None:
    bench.join(DRAFT_BE)
    others = {StreamKey("shop-2", 1): 5, StreamKey("", 7): 5}
    bench.do(e.Committed(bench.epoch, 0, {KEY: 1, **others}))
    tell(bench, {KEY: 2, **others}, ["shop-1", "shop-2", ""], batch=1, cursor=1)
    bench.do(e.Rewound(bench.epoch + 1, 1, {KEY: 3, **others}))
    assert bench.state.buffer.committed == {KEY: 3}


@revisions
def test_a_scope_without_connectors_and_rows_is_forgotten_and_asked_for_again(bench: Bench, revision: Revision) -> None:
    key = key_of(revision)
    bench.rewind({key: 40}, 3)
    connector = bench.join(revision)
    connector.open(7, 40)
    connector.messages(7, [41])
    connector.leave()
    bench.do(e.Tick(1.0))
    assert followed(bench) == [key.scope], "its rows are held"
    bench.run_batch()
    bench.do(e.Tick(2.0))
    assert (followed(bench), bench.state.buffer.committed) == ([], {})

    # Another worker has served the instance meanwhile, and has acknowledged more to it.
    bench.told = {key: 60}
    again = bench.join(revision)
    again.open(7, 60)
    assert bench.state.buffer.reference(key) == 60


@drafts
def test_a_scope_is_followed_until_the_ends_of_its_streams_are_recorded(
    make_bench: Callable[..., Bench], revision: Revision
) -> None:
    bench = make_bench(stream_retention=60.0)
    connector = bench.join(revision)
    connector.open(7)
    connector.messages(7, [1, 2])
    connector.end(7, 2)
    bench.run_batch()
    connector.leave()
    bench.do(e.Tick(1.0))
    assert (bench.unassigned, followed(bench)) == (["shop-1"], ["shop-1"])

    # The instance may have been at another worker, so the driver is asked again.
    bench.told = {KEY: 9}
    again = bench.join(revision)
    assert [stream.ref for stream in again.said(Ok)[0].streams] == [9]
    again.leave()
    bench.do(e.Tick(2.0))
    bench.do(e.Committed(bench.epoch, bench.batch + 1, {}, ended=(KEY,)))
    bench.do(e.Tick(3.0))
    assert followed(bench) == []


@drafts
def test_a_query_that_goes_back_is_told_for_each_scope_when_its_references_come(
    bench: Bench, revision: Revision
) -> None:
    bench.rewind({KEY: 40, StreamKey("shop-2", 7): 40}, 3)
    first, second = bench.join(revision, "shop-1"), bench.join(revision, "shop-2")
    for connector in (first, second):
        connector.open(7, 40)
        connector.messages(7, [41, 42])
    bench.driver_answers = False
    bench.epoch += 1
    # The driver has not heard of shop-2, which came after its question.
    bench.do(e.Rewound(bench.epoch, 0, {KEY: 10}, scopes=["shop-1"], cursor=1))
    assert bench.state.buffer.reference(KEY) == 10
    assert bench.state.buffer.reference(StreamKey("shop-2", 7)) == 40
    assert (len(first.frames) > 1, second.frames[-1].__class__) == (True, Ok)

    bench.do(e.Committed(bench.epoch, 1, {StreamKey("shop-2", 7): 50}))
    assert bench.state.buffer.reference(StreamKey("shop-2", 7)) == 40
    asked = bench.state.connections.following.answer(1, everything=False)
    assert asked.new == ["shop-2"]
    tell(bench, {StreamKey("shop-2", 7): 10}, ["shop-2"], batch=1, cursor=asked.cursor)
    assert bench.state.buffer.reference(StreamKey("shop-2", 7)) == 10
    assert second.frames[-1].__class__ is not Ok


class TestFollowing:
    def test_each_scope_is_named_once(self) -> None:
        following = Following()
        for scope in ("a", "b", "a", "c"):
            following.ask(scope)
        assert following.answer(0, everything=False).new == ["a", "b", "c"]
        assert following.answer(2, everything=False) == (answer := following.answer(2, everything=False))
        assert (answer.cursor, answer.new, answer.kept, answer.count) == (3, ["c"], None, 3)
        assert following.answer(2, everything=True).kept == ["a", "b"]

    def test_a_notice_that_leaves_out_what_its_sender_has_heard_of_is_asked_again(self) -> None:
        following = Following()
        following.ask("a")
        following.ask("b")
        assert following.take(["a"], 2) == ["a"]
        assert (following.knows("a"), following.knows("b")) == (True, False)
        assert following.answer(2, everything=False).new == ["b"]

    def test_what_an_earlier_sender_has_told_and_a_new_one_has_not_heard_of_is_asked_again(self) -> None:
        following = Following()
        following.ask("a")
        following.ask("b")
        assert following.take(["a", "b"], 2) == ["a", "b"]
        following.take([], 1)
        assert (following.knows("a"), following.knows("b")) == (True, False)
        assert following.answer(2, everything=False).new == ["b"]

    @pytest.mark.parametrize("forgotten", ["a", "b"])
    def test_a_forgotten_scope_is_unknown(self, forgotten: str) -> None:
        following = Following()
        following.ask("a")
        following.take(None, None)
        following.forget(forgotten)
        assert (following.knows("a"), "a" in following) == ((forgotten == "b"),) * 2


def test_a_range_that_is_given_up_is_asked_for_with_its_scope_until_it_is_recorded(bench: Bench) -> None:
    bench.rewind({KEY: 40}, 3)
    bench.connect(DRAFT_BE).hello()
    following = bench.state.connections.following
    planned, other = PlannedRange(KEY, 40, 42), StreamKey("shop-2", 1)
    cursor = following.cursor

    out = bench.state.handle(e.GiveUp(planned))
    assert e.WakeDriver() in out
    answer = following.answer(cursor, everything=False)
    assert (answer.new, answer.give_up) == ([KEY.scope], (planned,))
    assert FollowedScopes.decode(answer.encode()) == answer
    # The same wish changes nothing; a scope that is not followed has none.
    assert bench.state.handle(e.GiveUp(planned)) == bench.state.handle(e.GiveUp(PlannedRange(other, 1, 2))) == []
    assert following.given_up == {}

    references: dict[StreamKey, Reference | None] = {KEY: 40}
    given_up = (planned, PlannedRange(other, 1, 2))
    told = e.Committed(bench.epoch, bench.batch, references, scopes=[KEY.scope], cursor=answer.cursor)
    bench.do(replace(told, given_up=given_up))
    assert following.given_up == {KEY: planned}
    assert following.answer(0, everything=False).give_up == ()


def test_ranges_of_a_scope_are_forgotten_with_it() -> None:
    following = Following()
    following.ask(KEY.scope)
    following.recorded([PlannedRange(KEY, 40, 42)])
    following.give_up(PlannedRange(KEY, 50, 52))
    following.forget(KEY.scope)
    following.ask(KEY.scope)

    assert (following.given_up, following.answer(0, everything=False).give_up) == ({}, ())
