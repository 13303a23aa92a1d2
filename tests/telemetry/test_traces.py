"""Traces: a worker follows one of so many messages, and the driver makes spans of it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.worker.bench import NOON, Bench
from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.protocol import V3
from wallaroo_spark.protocol.revisions import DRAFT_LE
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.telemetry import traces
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
    return bench, bench.state.traced


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
    assert bench.state.traced is not None
    bench.state.traced.acknowledged(NOON)

    assert [sample["instance"] for sample in bench.state.traced.finished(0)] == ["shop-1"]


def test_the_finished_messages_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_messages, "KEPT_MESSAGES", 3)
    bench, samples = sending(1, 60)
    assert samples is not None
    for reference in range(10, 61, 10):
        commit(bench, reference, 1.0)
        samples.acknowledged(NOON)

    assert [sample["serial"] for sample in samples.finished(0)] == [4, 5, 6]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that an SDK in this process receives."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return exporter


class Worker:
    """A worker with finished samples."""

    def __init__(self) -> None:
        self.samples_: list[dict[str, Any]] = []
        self.silent = False

    def add(self, **fields: Any) -> None:
        known = {"instance": "shop-1", "stream": "orders", "stream_id": "7", "message_id": "10", "batch": 3}
        times = {"received_at": NOON, "planned_at": NOON + 1, "read_at": NOON + 2, "committed_at": NOON + 3}
        serial = len(self.samples_) + 1
        self.samples_.append({**known, **times, "acknowledged_at": NOON + 4, "serial": serial, **fields})

    def traced(self, after: int) -> list[dict[str, Any]]:
        if self.silent:
            raise TransportError("it does not answer")
        return [sample for sample in self.samples_ if sample["serial"] > after]


def test_the_spans_of_a_message_have_its_times_and_its_batch(exported: InMemorySpanExporter) -> None:
    worker = Worker()
    worker.add()
    tracer = traces.Tracer("orders", lambda: {0: (1, worker)})
    tracer.ask()
    tracer.ask()

    *steps, whole = exported.get_finished_spans()
    assert whole.name == "wallaroo.message"
    assert whole.parent is None
    assert (whole.start_time, whole.end_time) == (NOON * 1000, (NOON + 4) * 1000)
    assert dict(whole.attributes or {}) == {
        "wallaroo.receiver": "orders",
        "wallaroo.slot": 0,
        "wallaroo.instance": "shop-1",
        "wallaroo.stream": "orders",
        "wallaroo.stream_id": "7",
        "wallaroo.message_id": "10",
        "wallaroo.batch": 3,
    }
    assert [step.name for step in steps] == [name for name, _, _ in traces.STEPS]
    assert all(step.parent is not None and step.parent.span_id == whole.context.span_id for step in steps)
    assert [step.start_time for step in steps] == [(NOON + number) * 1000 for number in range(4)]
    assert all(step.attributes and step.attributes["wallaroo.batch"] == 3 for step in steps)


def test_a_step_that_was_not_timed_has_no_span(exported: InMemorySpanExporter) -> None:
    worker = Worker()
    worker.add(planned_at=0, read_at=0)
    traces.Tracer("orders", lambda: {0: (1, worker)}).ask()

    assert [span.name for span in exported.get_finished_spans()] == ["wallaroo.acknowledge", "wallaroo.message"]


def test_a_new_worker_of_a_slot_is_asked_from_the_start_and_a_silent_one_again(exported: InMemorySpanExporter) -> None:
    first, second = Worker(), Worker()
    first.add()
    second.add()
    serving = {0: (1, first)}
    tracer = traces.Tracer("orders", lambda: serving)
    tracer.ask()
    serving = {0: (2, second)}
    second.silent = True
    tracer.ask()
    second.silent = False
    tracer.ask()

    assert len([span for span in exported.get_finished_spans() if span.name == "wallaroo.message"]) == 2


def test_traces_without_the_package_are_refused_with_the_extra_and_none_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    traces.require(0)

    with pytest.raises(ConfigurationError, match=r"traceSample is 100.*wallaroo-spark\[otel\]"):
        traces.require(100)
