"""The messages that a worker follows for traces: which are chosen, and the time of each step."""

from __future__ import annotations

import pytest

from tests.worker.bench import NOON, Bench
from wallaroo_spark.protocol import DRAFT_BE, DRAFT_LE, V3, Flags
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine import traced_messages
from wallaroo_spark.worker.machine.traced_messages import TracedMessages

SECOND = 1_000_000
KEY = StreamKey("shop-1", 7)


def sending(every: int, messages: int) -> tuple[Bench, TracedMessages | None]:
    """A worker that has received messages, ten at a time."""
    bench = Bench(trace_sample=every)
    shop = bench.join(DRAFT_LE, "shop-1")
    shop.open(7, name="orders")
    for first in range(1, messages + 1, 10):
        shop.messages(7, range(first, min(first + 10, messages + 1)))
    return bench, bench.state.connections.traced


def commit(bench: Bench, reference: int, seconds: float) -> None:
    bench.batch += 1
    bench.do(e.Committed(bench.epoch, bench.batch, {KEY: reference}, seconds, NOON + int(seconds * SECOND)))


def test_nothing_is_followed_unless_asked_for() -> None:
    assert sending(0, 10)[1] is None


def test_one_of_so_many_messages_is_followed_through_all_its_steps() -> None:
    bench, samples = sending(100, 250)
    assert samples is not None
    samples.planned([PlannedRange(KEY, None, 110)], NOON + 1 * SECOND)
    samples.read([PlannedRange(KEY, None, 110)], NOON + 2 * SECOND)
    samples.planned([PlannedRange(KEY, None, 110)], NOON + 9 * SECOND)
    commit(bench, 110, 3.0)
    samples.acknowledged(NOON + 4 * SECOND)

    first, second = samples.finished(0)
    assert (first["message_id"], second["message_id"]) == ("10", "110")
    assert (second["instance"], second["stream"], second["stream_id"]) == ("shop-1", "orders", "7")
    times = [
        second[name] - NOON for name in ("received_at", "planned_at", "read_at", "committed_at", "acknowledged_at")
    ]
    assert times == [0, SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND]
    assert (second["batch"], second["serial"]) == (bench.batch, 2)
    assert samples.finished(2) == []
    commit(bench, 250, 5.0)
    samples.acknowledged(NOON + 6 * SECOND)
    assert [sample["message_id"] for sample in samples.finished(2)] == ["210"]


def test_an_ephemeral_stream_is_not_followed_and_the_next_sample_is_taken_elsewhere() -> None:
    bench = Bench(trace_sample=10)
    shop = bench.join(DRAFT_BE, "shop-1")
    shop.open(7)
    shop.open(8)
    shop.messages(7, range(1, 11), Flags.EPHEMERAL)
    samples = bench.state.connections.traced
    assert samples is not None
    assert not samples._open
    shop.messages(8, [4])

    assert [(sample.stream_id, sample.message_id) for _, _, sample in samples._open] == [("8", "4")]


def test_a_commit_of_other_streams_or_of_less_leaves_a_message_open() -> None:
    _, samples = sending(1, 20)
    assert samples is not None
    samples.committed({StreamKey("shop-1", 8): 99, StreamKey("shop-2", 7): 99}, 5, NOON)
    samples.committed({KEY: None}, 6, NOON)
    samples.committed({KEY: 10}, 7, NOON)
    samples.acknowledged(NOON)

    assert [(sample["message_id"], sample["batch"]) for sample in samples.finished(0)] == [("10", 7)]
    assert [sample.message_id for _, _, sample in samples._open] == ["20"]


def test_no_more_messages_are_followed_at_the_same_time_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_messages, "OPEN_MESSAGES", 2)
    bench, samples = sending(1, 40)
    assert samples is not None
    assert [sample.message_id for _, _, sample in samples._open] == ["30", "40"]
    commit(bench, 40, 1.0)
    samples.acknowledged(NOON)
    assert [sample["message_id"] for sample in samples.finished(0)] == ["30", "40"]
    # With nothing to follow, the ranges of a read are not looked at.
    ranges = iter([PlannedRange(KEY, 40, 50)])
    samples.planned(ranges, NOON)
    samples.read(ranges, NOON)
    assert len(list(ranges)) == 1


def test_a_range_before_the_message_does_not_count_as_its_plan() -> None:
    _, samples = sending(1, 20)
    assert samples is not None
    samples.planned([PlannedRange(KEY, None, 15)], NOON + SECOND)

    assert [sample.planned_at for _, _, sample in samples._open] == [NOON + SECOND, 0]


def test_streams_of_the_whole_source_and_single_messages_are_followed_too() -> None:
    bench = Bench(trace_sample=1)
    shop = bench.join(V3, "shop-1")
    shop.open(7)
    shop.messages(7, [5])
    bench.batch += 1
    bench.do(e.Committed(bench.epoch, bench.batch, {StreamKey("", 7): 5}, 1.0, NOON))
    assert bench.state.connections.traced is not None
    bench.state.connections.traced.acknowledged(NOON)

    assert [sample["instance"] for sample in bench.state.connections.traced.finished(0)] == ["shop-1"]


def test_the_finished_messages_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_messages, "KEPT_MESSAGES", 3)
    bench, samples = sending(1, 60)
    assert samples is not None
    for reference in range(10, 61, 10):
        commit(bench, reference, 1.0)
        samples.acknowledged(NOON)

    assert [sample["serial"] for sample in samples.finished(0)] == [4, 5, 6]
