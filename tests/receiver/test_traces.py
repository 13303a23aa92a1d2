"""Traces: the driver makes spans of the messages that workers have followed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.worker.bench import NOON
from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.receiver import traces
from wallaroo_spark.registry import Lease


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The spans that an SDK in this process receives."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    return exporter


def lease(generation: int) -> Lease:
    """A lease of the slot."""
    return Lease(0, 1, generation, "holder", "h:1", "h:2")


class Worker(WorkerClient):
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
    tracer = traces.Tracer("orders", lambda: {0: (lease(1), worker)})
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
    traces.Tracer("orders", lambda: {0: (lease(1), worker)}).ask()

    assert [span.name for span in exported.get_finished_spans()] == ["wallaroo.acknowledge", "wallaroo.message"]


def test_a_new_worker_of_a_slot_is_asked_from_the_start_and_a_silent_one_again(exported: InMemorySpanExporter) -> None:
    first, second = Worker(), Worker()
    first.add()
    second.add()
    serving = {0: (lease(1), first)}
    tracer = traces.Tracer("orders", lambda: serving)
    tracer.ask()
    serving = {0: (lease(2), second)}
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
