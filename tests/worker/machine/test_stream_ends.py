"""Ends of streams that a worker reports, and the answers to connectors about forgotten streams."""

from __future__ import annotations

import pytest

from tests.revisions import revisions
from tests.worker.bench import Bench, Connector
from wallaroo_spark.inner.calls import PlanAnswer, PlanQuestion
from wallaroo_spark.protocol import DRAFT_BE, V3, Ack, Error, Nack, NotifyAck, Ok, Revision
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e


def key(revision: Revision) -> StreamKey:
    return StreamKey("shop-1" if revision.stream_scope == "instance" else "", 7)


@pytest.fixture
def bench() -> Bench:
    return Bench(stream_retention=60.0)


def ask(bench: Bench, behind: int = 0) -> PlanAnswer:
    return PlanAnswer.decode(bench.state.offer(PlanQuestion(behind=behind)).encode())


def tell(bench: Bench, leaving: StreamKey | None = None, *, forgotten: StreamKey | None = None) -> None:
    """A commit notice in which nothing else has changed."""
    bench.batch += 1
    if forgotten is not None:
        bench.offsets.pop(forgotten, None)
        bench.told.pop(forgotten, None)
    named = ("", frozenset[StreamKey]()) if leaving is None else ("a group", frozenset({leaving}))
    bench.do(e.Committed(bench.epoch, bench.batch, {} if forgotten is None else {forgotten: None}, None, None, named))


def end_of(connector: Connector) -> None:
    connector.open(7)
    connector.messages(7, [1, 2, 3])
    connector.end(7, 3)


@revisions
def test_an_end_is_reported_when_it_is_committed_and_until_it_is_recorded(bench: Bench, revision: Revision) -> None:
    connector = bench.join(revision)
    end_of(connector)
    assert ask(bench).ended == {}
    bench.run_batch()
    assert ask(bench).ended == {key(revision): 3}
    assert bench.state.has_ends_to_report
    bench.batch += 1
    bench.do(e.Committed(bench.epoch, bench.batch, {}, None, None, ("", frozenset()), (key(revision),)))
    assert ask(bench).ended == {}


@revisions
def test_an_open_stream_has_not_ended(bench: Bench, revision: Revision) -> None:
    connector = bench.join(revision)
    connector.open(7)
    connector.messages(7, [1, 2])
    assert ask(bench).ended == {}
    bench.run_batch()
    assert ask(bench).ended == {}
    connector.end(7, 2)
    assert ask(bench).ended == {key(revision): 2}
    connector.open(7, 2)
    assert ask(bench).ended == {}


@revisions
def test_nobody_is_told_the_reference_of_a_leaving_stream(bench: Bench, revision: Revision) -> None:
    bench.rewind({key(revision): 3}, 5)
    tell(bench, key(revision))
    assert ask(bench).leaving == "a group"
    assert ask(bench).wanted == ()
    connector = bench.connect(revision)
    if revision is V3:
        connector.hello()
        connector.open(7)
        answer = connector.said(NotifyAck)[-1]
        assert (answer.success, answer.ref) == (False, 2**64 - 1)
    else:
        connector.hello()
        assert connector.said(Ok) == []
        assert connector.said(Error)[-1].reason.startswith("try again later: ")
    assert ask(bench).wanted == (key(revision),)
    # The driver has taken note.
    tell(bench)
    assert ask(bench).wanted == ()
    other = bench.join(revision)
    if revision is V3:
        other.open(7)
        assert (other.said(NotifyAck)[-1].success, other.said(NotifyAck)[-1].ref) == (True, 3)
    else:
        assert [(stream.stream_id, stream.ref) for stream in other.said(Ok)[-1].streams] == [(7, 3)]


@revisions
def test_a_connector_is_let_in_while_a_batch_is_read_that_forgets_nothing(bench: Bench, revision: Revision) -> None:
    bench.rewind({key(revision): 3}, 5)
    tell(bench, key(revision))
    assert ask(bench).wanted == ()
    bench.do(e.ReadBegan("a group", 0))
    connector = bench.join(revision)
    connector.open(7, 3)
    if revision is V3:
        assert connector.said(NotifyAck)[-1].ref == 3
    else:
        assert [(stream.stream_id, stream.ref) for stream in connector.said(Ok)[-1].streams] == [(7, 3)]
    assert ask(bench).wanted == (key(revision),)


@revisions
@pytest.mark.parametrize("token", ["", "another group"])
def test_a_read_of_another_plan_lets_nobody_in(bench: Bench, revision: Revision, token: str) -> None:
    bench.rewind({key(revision): 3}, 5)
    tell(bench, key(revision))
    bench.do(e.ReadBegan("a group", 0))
    # The plan that follows may forget the stream.
    assert ask(bench).wanted == ()
    bench.do(e.ReadBegan(token, 0))
    assert_sent_away(bench, revision)


@revisions
def test_a_task_that_lives_on_after_its_batch_lets_nobody_in(bench: Bench, revision: Revision) -> None:
    bench.rewind({key(revision): 3}, 5)
    tell(bench, key(revision))
    bench.do(e.ReadBegan("a group", 1_000))
    assert ask(bench, 2_000).wanted == ()
    # The answer may have led to a plan that forgets the stream.
    bench.do(e.ReadBegan("a group", 1_000))
    assert_sent_away(bench, revision)


@revisions
def test_a_query_that_starts_again_behind_an_older_plan_lets_connectors_in(bench: Bench, revision: Revision) -> None:
    bench.rewind({key(revision): 3}, 5)
    tell(bench, key(revision))
    ask(bench, 2_000)
    left = ("a group", frozenset({key(revision)}))
    bench.epoch += 1
    bench.batch = 3
    bench.do(e.Rewound(bench.epoch, 3, {key(revision): 3}, left))
    bench.do(e.ReadBegan("a group", 1_000))
    connector = bench.join(revision)
    connector.open(7, 3)
    assert connector.said(Ok)


def assert_sent_away(bench: Bench, revision: Revision) -> None:
    connector = bench.connect(revision)
    connector.hello()
    if revision is V3:
        connector.open(7)
        assert connector.said(NotifyAck)[-1].success is False
    else:
        assert connector.said(Error)[-1].reason.startswith("try again later: ")


@revisions
def test_a_forgotten_stream_begins_again(bench: Bench, revision: Revision) -> None:
    bench.rewind({key(revision): 9}, 5)
    tell(bench, key(revision))
    tell(bench, forgotten=key(revision))
    connector = bench.join(revision)
    connector.open(7)
    connector.messages(7, [1, 2])
    assert bench.run_batch() == {key(revision): [1, 2]}
    assert [pair for ack in connector.said(Ack) for pair in ack.refs] == [(7, 2)]


@revisions
def test_a_session_that_goes_on_behind_a_forgotten_reference_loses_nothing(bench: Bench, revision: Revision) -> None:
    bench.rewind({key(revision): 9}, 5)
    connector = bench.join(revision)
    connector.open(7, 9)
    connector.messages(7, [10, 11])
    tell(bench, key(revision))
    assert ask(bench).wanted == (key(revision),)
    tell(bench, forgotten=key(revision))
    assert bench.run_batch() == {key(revision): [10, 11]}


@revisions
def test_a_worker_that_missed_the_plan_that_forgets_asks_nobody_to_send_again(bench: Bench, revision: Revision) -> None:
    connector = bench.join(revision)
    end_of(connector)
    bench.run_batch()
    tell(bench, key(revision))
    assert ask(bench).leaving == "a group"
    said = len(connector.said(Nack))
    bench.offsets.pop(key(revision))
    bench.do(e.Rewound(bench.epoch, bench.batch, {}))
    assert (len(connector.said(Nack)), connector.closed) == (said, None)
    assert ask(bench).leaving == ""


def test_without_the_option_nothing_leaves_and_nothing_is_reported() -> None:
    bench = Bench()
    bench.rewind({key(DRAFT_BE): 3}, 5)
    tell(bench, key(DRAFT_BE))
    assert (ask(bench).leaving, ask(bench).wanted) == ("", ())
    bench.join(DRAFT_BE)
    end_of(bench.join(V3))
    assert ask(bench).ended == {}
