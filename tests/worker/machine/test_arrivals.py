"""Messages that several sessions send at about the same time: accepted together, and answered to each session."""

from __future__ import annotations

import pytest

from proving.simulator.engine.failing import Failing
from tests.worker.bench import COOKIE, NOON, Bench, Connector
from wallaroo_spark.columnar import Decoded, RunRows, by_stream
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, V3, Flags, Message
from wallaroo_spark.references import StreamKey
from wallaroo_spark.worker.machine import events as e

pytestmark = pytest.mark.no_cover

A, B, C = StreamKey("a", 1), StreamKey("b", 1), StreamKey("c", 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def together(bench: Bench, *sent: tuple[Connector, list[bytes]]) -> None:
    bench.do(e.Received(tuple((connector.number, b"".join(frames)) for connector, frames in sent), NOON))
    bench.validate()


def joined(bench: Bench, *names: str) -> list[Connector]:
    connectors = [bench.join(DRAFT_BE, name) for name in names]
    for connector in connectors:
        connector.open(1)
    return connectors


def sent(connector: Connector, *ids: int, flags: Flags = Flags.NONE) -> list[bytes]:
    return [connector.message(1, message_id, flags) for message_id in ids]


def test_runs_that_arrive_together_are_one_lot_and_reach_their_streams(bench: Bench) -> None:
    a, b, c = joined(bench, "a", "b", "c")
    together(bench, (a, sent(a, 1, 2)), (b, sent(b, 5)), (c, sent(c, 7, 8, 9)))

    held = {segment.held for ledger in bench.state.buffer.streams.values() for segment in ledger.segments}
    assert len(held) == 1
    assert bench.run_batch() == {A: [1, 2], B: [5], C: [7, 8, 9]}


def test_a_session_may_have_sent_several_times(bench: Bench) -> None:
    a, b = joined(bench, "a", "b")
    frames = sent(a, 1, 2)
    together(bench, (a, [frames[0][:7]]), (b, sent(b, 1)), (a, [frames[0][7:], frames[1]]))

    assert bench.run_batch() == {A: [1, 2], B: [1]}


def test_sessions_of_several_revisions_are_taken_in_together(bench: Bench) -> None:
    connectors = {"a": bench.join(DRAFT_LE, "a"), "b": bench.join(DRAFT_BE, "b"), "c": bench.join(V3, "c")}
    for number, connector in enumerate(connectors.values(), 1):
        connector.open(number)
    together(bench, *((one, [one.message(at, 3)]) for at, one in enumerate(connectors.values(), 1)))

    assert bench.run_batch() == {StreamKey("a", 1): [3], StreamKey("b", 2): [3], StreamKey("", 3): [3]}


def test_bad_input_of_one_session_ends_that_one_alone(bench: Bench) -> None:
    a, b, c = joined(bench, "a", "b", "c")
    tag = sent(b, 9)[0][4:5]
    together(bench, (a, sent(a, 1)), (b, [*sent(b, 1), b"\0\0\0\3" + tag + b"\0\0"]), (c, sent(c, 1)))

    assert "MESSAGE" in b.error
    assert a.closed is c.closed is None
    assert bench.run_batch() == {A: [1], B: [1], C: [1]}


def test_rows_before_a_violation_are_kept(bench: Bench) -> None:
    a, b = joined(bench, "a", "b")
    other = DRAFT_BE.encode(Message(2, 1, b"x"))
    together(bench, (a, [*sent(a, 1, 2), other, *sent(a, 3)]), (b, sent(b, 1)))

    assert "2" in a.error
    assert bench.run_batch() == {A: [1, 2], B: [1]}


def test_a_defect_of_this_program_costs_the_session_it_shows_in(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = joined(bench, "a", "b")

    def fails(decoded: Decoded) -> list[RunRows]:
        if 66 in decoded.fields.message_ids:
            raise ZeroDivisionError("a defect")
        return by_stream(decoded)

    monkeypatch.setattr("wallaroo_spark.worker.machine.arrivals.by_stream", fails)
    together(bench, (a, sent(a, 66)), (b, sent(b, 1)))

    assert a.closed == e.Close(a.number, at_once=True)
    assert bench.counts["internal-errors"] == 1
    assert [type(log.error) for log in bench.logged if log.error is not None] == [ZeroDivisionError]
    assert b.closed is None
    assert bench.run_batch() == {B: [1]}


def test_bytes_of_a_session_that_has_ended_are_passed_over(bench: Bench) -> None:
    a, b = joined(bench, "a", "b")
    frames = sent(a, 1)
    a.leave()
    together(bench, (a, frames), (b, sent(b, 1)))

    assert bench.run_batch() == {B: [1]}


def test_a_stream_may_end_and_begin_again_in_one_lot(bench: Bench) -> None:
    a, b = joined(bench, "a", "b")
    ending = sent(a, 1) + sent(a, 2, flags=Flags.EOS)
    again = [a.session.notify(1, "again", 0), *sent(a, 3)]
    together(bench, (a, ending + again), (b, sent(b, 1)))

    assert bench.run_batch() == {A: [1, 2, 3], B: [1]}


@pytest.mark.parametrize("ids", ["increasing", "opaque"])
def test_every_message_is_delivered_once_after_a_failure_of_any_call(ids: str) -> None:
    """A failed call ends sessions, which resend their uncommitted messages, or ends the worker with all held rows."""
    ended = cut_off = 0
    for calls in range(1, 100_000):
        failing = Failing(calls)
        bench = Bench(message_ids=ids)
        a, b = bench.join(DRAFT_BE, "a"), bench.join(DRAFT_LE, "b")
        for connector in (a, b):
            connector.open(1)
            connector.messages(1, [1, 2])
        parts = ((a.number, a.message(1, 3) + a.message(1, 4)[:9]), (b.number, b"".join(sent(b, 3, 4))))
        try:
            with failing.counting():
                instructions = bench.state.handle(e.Received(parts, NOON))
        except MemoryError:
            ended += 1
            continue
        if not failing.failed:
            break
        bench.carry_out(instructions)
        again = []
        for connector in (a, b):
            if connector.closed:
                cut_off += 1
                connector.leave()
                again.append(bench.join(connector.revision, connector.instance))
                again[-1].open(1)
        for connector in again:
            connector.messages(1, [1, 2, 3, 4])
        if a.closed is None:
            a.send(a.message(1, 4)[9:])
        assert bench.run_batch() == {A: [1, 2, 3, 4], B: [1, 2, 3, 4]}, f"call {calls}"
    assert cut_off > ended


def test_a_stream_that_is_taken_over_is_delivered_once_after_a_failure_of_any_call() -> None:
    """A NOTIFY drops the rows that the last session sent behind a stable reference, when no session has the stream."""
    ended = cut_off = 0
    for calls in range(1, 100_000):
        failing = Failing(calls)
        bench = Bench()
        before = bench.join(DRAFT_BE, "a")
        before.open(1)
        before.messages(1, [1, 2])
        before.messages(1, [3, 4], Flags.UNSTABLE_REFERENCE)
        before.leave("its connection was cut")
        after = bench.join(DRAFT_BE, "a")
        try:
            with failing.counting():
                instructions = bench.state.handle(
                    e.Received(((after.number, after.session.notify(1, "a stream", 0)),), NOON)
                )
        except MemoryError:
            ended += 1
            continue
        if not failing.failed:
            break
        bench.carry_out(instructions)
        bench.validate()
        if after.closed:
            cut_off += 1
            after.leave()
            after = bench.join(DRAFT_BE, "a")
            after.open(1)
        after.messages(1, [1, 2, 3, 4])
        assert bench.run_batch() == {A: [1, 2, 3, 4]}, f"call {calls}"
    assert cut_off > ended


def test_a_refused_session_is_removed_completely_after_a_failure_of_any_call() -> None:
    refused = 0
    for calls in range(1, 100_000):
        failing = Failing(calls)
        bench = Bench()
        connector = bench.connect(DRAFT_BE, "a")
        hello = connector.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance="a")
        assert e.AskAssignment(0, "a") in bench.state.handle(e.Received(((0, hello),), NOON))
        try:
            with failing.counting():
                bench.state.handle(e.Assigned(0, "a", 1, "another:7101"))
        except MemoryError:
            continue
        if not failing.failed:
            break
        bench.validate()
        refused += 0 not in bench.state.connections.serving
    assert refused


def test_a_replaced_session_is_removed_completely_after_a_failure_of_any_call() -> None:
    superseded = 0
    for calls in range(1, 100_000):
        failing = Failing(calls)
        bench = Bench()
        older = bench.join(DRAFT_BE, "a")
        older.open(1)
        older.messages(1, [1, 2])
        newer = bench.connect(DRAFT_BE, "a")
        hello = newer.session.hello(version="0.0.1", cookie=COOKIE.encode(), program="", instance="a")
        assert e.AskAssignment(newer.number, "a") in bench.state.handle(e.Received(((newer.number, hello),), NOON))
        try:
            with failing.counting():
                bench.state.handle(e.Assigned(newer.number, "a", 0, "here:7100"))
        except MemoryError:
            continue
        if not failing.failed:
            break
        bench.validate()
        superseded += older.number not in bench.state.connections.serving
    assert superseded
