"""The table of metrics: names in Prometheus' conventions, values from snapshots, bounded labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proving.pages.metrics import metrics_page
from tests.observe.facts import receiver, slot
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS, METRICS, Facts, Metric, exposition
from wallaroo_spark.observe.figures import FigureKind
from wallaroo_spark.observe.query_facts import BatchTimes
from wallaroo_spark.observe.receiver import InstanceStatus, QueryStatus, ReceiverStatus, SlotStatus
from wallaroo_spark.observe.record import Aggregate

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def named(metric: Metric[Any]) -> str:
    return metric.name


def values(facts: Facts[ReceiverStatus]) -> Values:
    """Every sample of the text, read by Prometheus' own parser."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(facts, METRICS).decode())
        for sample in family.samples
    }


def of(found: Values, name: str, **labels: str) -> float:
    return found[name, frozenset({"receiver": "orders", **labels}.items())]


def facts(*slots: SlotStatus) -> Facts[ReceiverStatus]:
    status, aggregate = receiver(*slots), Aggregate()
    aggregate.add(status)
    return Facts(status, counts=aggregate.counts())


@pytest.mark.parametrize("metric", [*METRICS, *APPLICATION_METRICS], ids=named)
def test_a_name_follows_prometheus_conventions(metric: Metric[Any]) -> None:
    assert re.fullmatch(r"wallaroo_[a-z]+(_[a-z]+)*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is FigureKind.COUNTER)
    assert metric.name.removesuffix("_total").endswith("_seconds") == (metric.unit == "s")
    assert metric.name.removesuffix("_total").endswith("_bytes") == (metric.unit == "By")
    assert metric.help.endswith(".")
    assert len(metric.help) < 250
    assert re.fullmatch(r"wallaroo(\.[a-z_]+)+", metric.otel)


def test_names_are_apart() -> None:
    assert len({metric.name for metric in METRICS}) == len({metric.otel for metric in METRICS}) == len(METRICS)


def test_no_label_is_a_stream_and_only_limited_metrics_have_an_instance() -> None:
    labels = {label for metric in METRICS for label in metric.labels}

    assert labels == {"slot", "reason", "fault", "pressure", "phase", "instance", "door", "code"}
    assert {metric.name for metric in METRICS if "instance" in metric.labels} == {
        "wallaroo_instance_ack_age_seconds",
        "wallaroo_instance_buffered_messages",
    }


def test_counts_of_workers_are_counters_by_slot_and_kind() -> None:
    counts = {"messages": 7, "fault:wrong-cookie": 2, "refused:wrong-cookie": 2, "fault:no-credit": 1, "paused:hard": 3}
    found = values(facts(slot(0, counts=counts), slot(1, counts={"messages": 5})))

    assert of(found, "wallaroo_messages_total", slot="0") == 7
    assert of(found, "wallaroo_messages_total", slot="1") == 5
    assert of(found, "wallaroo_protocol_violations_total", slot="0", fault="no-credit") == 1
    assert of(found, "wallaroo_handshakes_refused_total", slot="0", reason="wrong-cookie") == 2
    assert of(found, "wallaroo_handshakes_refused_total", slot="1", reason="wrong-cookie") == 0
    assert of(found, "wallaroo_pauses_total", slot="0", pressure="hard") == 3


def test_the_ages_of_acknowledged_messages_are_a_histogram() -> None:
    counts = {"ack-age:0.1": 3, "ack-age:2": 1, "ack-age:+Inf": 1, "ack-age-us": 400_000_000}
    found = values(facts(slot(counts=counts)))

    assert of(found, "wallaroo_ack_latency_seconds_bucket", slot="0", le="0.05") == 0
    assert of(found, "wallaroo_ack_latency_seconds_bucket", slot="0", le="0.1") == 3
    assert of(found, "wallaroo_ack_latency_seconds_bucket", slot="0", le="300.0") == 4
    assert of(found, "wallaroo_ack_latency_seconds_bucket", slot="0", le="+Inf") == 5
    assert of(found, "wallaroo_ack_latency_seconds_count", slot="0") == 5
    assert of(found, "wallaroo_ack_latency_seconds_sum", slot="0") == 400


def test_a_slot_without_worker_has_counters_and_no_levels() -> None:
    found = values(facts(slot(0, rows=9, sessions=2), slot(1, state="lost", died=1)))

    assert of(found, "wallaroo_slot_up", slot="0") == 1
    assert of(found, "wallaroo_slot_up", slot="1") == 0
    assert of(found, "wallaroo_worker_deaths_total", slot="1") == 1
    assert of(found, "wallaroo_buffered_messages", slot="0") == 9
    assert ("wallaroo_buffered_messages", frozenset({("receiver", "orders"), ("slot", "1")})) not in found


def test_only_as_many_instances_have_metrics_as_were_asked_for() -> None:
    waiting = tuple(InstanceStatus(0, f"shop-{n}", "streaming", ack_age=100.0 - n, rows=n) for n in range(50))
    found = values(Facts(receiver(slot(), instances=waiting), instances=2))

    mine = {dict(labels)["instance"] for name, labels in found if name == "wallaroo_instance_ack_age_seconds"}
    assert mine == {"shop-0", "shop-1"}
    assert not any("instance" in dict(labels) for _, labels in values(Facts(receiver(slot(), instances=waiting))))


def report(batch: int, rows: int, **durations: int) -> dict[str, Any]:
    """A progress report of Spark."""
    return {"runId": "run", "batchId": batch, "numInputRows": rows, "durationMs": durations}


def test_each_batch_counts_once_in_the_histogram_of_its_phases() -> None:
    batches = BatchTimes()
    first = report(0, 10, addBatch=300, walCommit=40, triggerExecution=400, getBatch=1)
    second = report(1, 10, addBatch=700, triggerExecution=900)
    batches.add([first])
    batches.add([first, second, report(2, 0, latestOffset=3, triggerExecution=3)])
    found = values(Facts(receiver(slot()), batches=batches))

    assert of(found, "wallaroo_batches_total") == 2
    assert of(found, "wallaroo_batch_phase_seconds_count", phase="run") == 2
    assert of(found, "wallaroo_batch_phase_seconds_sum", phase="run") == pytest.approx(1.0)
    assert of(found, "wallaroo_batch_phase_seconds_bucket", phase="run", le="0.5") == 1
    assert of(found, "wallaroo_batch_phase_seconds_count", phase="write_offsets") == 1


def test_the_levels_of_the_query() -> None:
    query = QueryStatus("running", committed_batch=41, batch=42, since=990.0)
    found = values(Facts(receiver(slot(), query=query), driver={"commits": 42, "registry-errors": 3}))

    assert of(found, "wallaroo_committed_batch") == 41
    assert of(found, "wallaroo_commits_total") == 42
    assert of(found, "wallaroo_batch_running_seconds") == 10
    assert of(found, "wallaroo_driver_registry_errors_total") == 3
    assert of(found, "wallaroo_query_up") == 1
    assert of(found, "wallaroo_healthy") == 1


def test_every_metric_has_help_and_its_type_in_the_text() -> None:
    text = exposition(facts(slot(counts={"messages": 1})), METRICS).decode()

    for metric in METRICS:
        assert f"# HELP {metric.name} {metric.help}\n" in text
        assert f"# TYPE {metric.name} {metric.kind}\n" in text


def test_the_page_of_metrics_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page(), "run: python -m proving.pages"
