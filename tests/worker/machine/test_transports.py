"""What a transport tells the machine beside bytes: violations that it has found, lost messages, bytes that it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.worker.bench import Bench
from wallaroo_spark.protocol import DRAFT_BE, Ack, Error
from wallaroo_spark.worker.machine import events as e


def test_a_violation_ends_its_session_with_an_error_and_no_other(bench: Bench) -> None:
    bad, good = bench.join(DRAFT_BE, "bad"), bench.join(DRAFT_BE, "good")
    bench.do(e.Violated(bad.number, "wrong-channel", "a frame of another stream"))
    assert bad.said(Error) == [Error("a frame of another stream")]
    assert bench.state.connections.counts["fault:wrong-channel"] == 1
    bench.do(e.Violated(bad.number, "wrong-channel", "again"))
    assert bench.state.connections.counts["fault:wrong-channel"] == 1
    good.open(7)
    good.messages(7, [1])
    assert bench.state.connections.counts["messages"] == 1


def test_lost_messages_use_credits_and_others_are_granted(bench: Bench) -> None:
    connector = bench.join(DRAFT_BE)
    credits = bench.state.connections.by_number[connector.number].protocol.credits
    before = credits.available
    bench.do(e.Undelivered(connector.number, before - 1))
    assert bench.state.connections.counts["lost-messages"] == before - 1
    assert connector.said(Ack)[-1].credits > 0
    assert credits.available == 1 + connector.said(Ack)[-1].credits


def test_more_lost_messages_than_there_are_credits_leave_none(bench: Bench) -> None:
    connector = bench.join(DRAFT_BE)
    bench.do(e.Undelivered(connector.number, 1 << 40))
    assert bench.state.connections.by_number[connector.number].protocol.credits.available >= 0


def test_bytes_that_wait_before_ok_are_limited_and_later_ones_count_nothing(
    make_bench: Callable[..., Bench],
) -> None:
    bench = make_bench(memory_budget=16 << 20)
    early, streaming = bench.connect(DRAFT_BE, "early"), bench.join(DRAFT_BE, "streaming")
    bench.do(e.Holding(streaming.number, 8 << 20))
    assert bench.state.buffer.used == 0
    bench.do(e.Holding(early.number, 1 << 20))
    assert early.closed is None
    bench.do(e.Holding(early.number, (1 << 20) + 1))
    assert early.closed is not None
    assert bench.state.connections.counts["fault:worker-full"] == 1
    assert streaming.closed is None


@pytest.mark.parametrize(
    "event",
    [e.Undelivered(99, 1), e.Violated(99, "wrong-channel", "x"), e.Holding(99, 1)],
    ids=lambda one: type(one).__name__,
)
def test_a_connection_that_has_ended_is_passed_over(bench: Bench, event: e.Event) -> None:
    assert bench.do(event) == []
