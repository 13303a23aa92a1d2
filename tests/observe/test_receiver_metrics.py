"""Metrics, health and traces of a running receiver: asked over HTTP, and scraped by a real Prometheus."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from proving.servers.prometheus import PrometheusServer
from tests.observe.test_alerts import DASHBOARDS, RULES, dashboard_expressions, names, rules
from tests.receiver.support import COOKIE, Feeders, addresses, numbered
from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.observe.faces import metrics as tables
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS
from wallaroo_spark.observe.receiver import StreamStatus
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.receiver.traces import STEPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 500
WAIT = 120.0


class Served:
    """A receiver with a query that has committed messages of two connectors."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def fetch(self, path: str) -> tuple[int, str]:
        """Status and text of a page."""
        try:
            with urllib.request.urlopen(self.receiver.page_address + path, timeout=SECONDS) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def values(self) -> dict[str, float]:
        """The sums over all labels, by the name of the sample."""
        status, text = self.fetch("metrics")
        assert status == 200, text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found


@pytest.fixture(scope="module")
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans of this file's receiver, as the user's SDK receives them in the driver."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
        yield exporter


@pytest.fixture(scope="module")
def served(
    spark: SparkSession, spans: InMemorySpanExporter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    options: dict[str, Any] = {"workers": 2, "cookie": COOKIE, "lease_seconds": 2, "status_page": "127.0.0.1:0"}
    more = {"trace_sample": 100, "metrics_instances": 1, "http_port": 0}
    with Receiver(spark, "orders", **options, **more) as receiver, Feeders() as feeders:
        writer = receiver.stream().writeStream.format("noop").trigger(processingTime="200 milliseconds")
        receiver.start_query(writer, checkpoint=str(tmp_path_factory.mktemp("metrics") / "checkpoint"))
        found = Served(receiver)
        for shop in ("shop-1", "shop-2"):
            connector = feeders.connect(shop, addresses(receiver))
            feeders.feed(connector, numbered("a stream", 1, MESSAGES)).result(WAIT)
        yield found


def test_the_metrics_count_sent_and_committed_messages(served: Served) -> None:
    values = served.values()

    assert values["wallaroo_messages_total"] == values["wallaroo_committed_messages_total"] == 2 * MESSAGES
    assert values["wallaroo_ack_latency_seconds_count"] == 2 * MESSAGES
    assert values["wallaroo_ack_latency_seconds_sum"] > 0
    assert values["wallaroo_received_bytes_total"] > 2 * MESSAGES * len("a stream 1")
    assert values["wallaroo_sessions_started_total"] >= 2
    assert values["wallaroo_credits_granted_total"] >= 2 * MESSAGES
    assert values["wallaroo_commits_total"] >= 1
    assert values["wallaroo_batches_total"] >= 1
    assert values["wallaroo_buffered_messages"] == 0
    assert values["wallaroo_slot_up"] == 2
    assert values["wallaroo_query_up"] == values["wallaroo_healthy"] == 1
    assert values["wallaroo_worker_submissions_total"] == 2


def test_receiver_metrics_has_the_same_numbers(served: Served) -> None:
    found = served.receiver.metrics()

    assert sum(value["value"] for value in found["wallaroo_messages_total"]) == 2 * MESSAGES
    assert sum(value["count"] for value in found["wallaroo_ack_latency_seconds"]) == 2 * MESSAGES
    assert {value["labels"]["slot"] for value in found["wallaroo_slot_up"]} == {"0", "1"}
    json.dumps(found)


def test_the_metrics_are_also_a_data_frame(served: Served) -> None:
    frame = served.receiver.metrics_frame()
    sums = {row["metric"]: row["sum(value)"] for row in frame.groupBy("metric").sum("value").collect()}

    assert sums["wallaroo_messages_total"] == sums["wallaroo_ack_latency_seconds_count"] == 2 * MESSAGES
    assert sums["wallaroo_ack_latency_seconds_sum"] > 0
    last = frame.where("metric = 'wallaroo_ack_latency_seconds_bucket' and labels['le'] = '+Inf'")
    assert sum(row["value"] for row in last.collect()) == 2 * MESSAGES
    up = frame.where("metric = 'wallaroo_slot_up'").select("receiver", "labels.slot", "value")
    assert sorted(map(tuple, up.collect())) == [("orders", "0", 1.0), ("orders", "1", 1.0)]


def test_a_receiver_that_works_is_healthy(served: Served) -> None:
    status, text = served.fetch("healthz")

    assert status == 200, text
    assert json.loads(text)["reasons"] == []


def test_without_the_extra_the_page_says_which_one_is_missing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "available", lambda: False)
    status, text = served.fetch("metrics")

    assert status == 501
    assert "wallaroo-spark[prometheus]" in text
    assert served.fetch("healthz")[0] == 200


def test_a_sampled_message_has_spans_from_its_arrival_to_its_acknowledgement(
    served: Served, spans: InMemorySpanExporter
) -> None:
    eventually(lambda: len([span for span in spans.get_finished_spans() if span.name == "wallaroo.message"]) >= 2)
    found = spans.get_finished_spans()
    wholes = [span for span in found if span.name == "wallaroo.message"]

    assert {(span.attributes or {})["wallaroo.instance"] for span in wholes} == {"shop-1", "shop-2"}
    for whole in wholes:
        steps = [span for span in found if span.parent is not None and span.parent.span_id == whole.context.span_id]
        assert [step.name for step in steps] == [name for name, _, _ in STEPS]
        times = [(step.start_time or 0, step.end_time or 0) for step in steps]
        assert whole.start_time == times[0][0]
        assert whole.end_time == times[-1][1]
        assert all(begin <= end for begin, end in times)
        assert int(str((whole.attributes or {})["wallaroo.batch"])) >= 0


def test_a_real_prometheus_has_data_for_every_expression_of_the_dashboard_and_metric_of_the_rules(
    served: Served, feeders: Feeders
) -> None:
    target = urlsplit(served.receiver.page_address).netloc
    server = PrometheusServer([target], RULES)
    server.start()
    try:
        sending = feeders.connect("shop-1", addresses(served.receiver))
        scraped = 'count_over_time(wallaroo_slot_up{slot="0"}[1m])'
        eventually(lambda: (found := server.query(scraped)) and float(found[0]["value"][1]) >= 2)
        feeders.feed(sending, numbered("another", 1, MESSAGES)).result(WAIT)
        empty: list[str] = []

        def all_answered() -> bool:
            empty[:] = [
                title for title, expression in dashboard_expressions(DASHBOARDS[:1]) if not server.query(expression)
            ]
            return not empty

        eventually(all_answered, "every expression of the dashboard has data")
        used = {name for rule in rules() for name in re.findall(r"wallaroo_\w+", rule["expr"])}
        assert used <= names()
        # This server has no application to ask.
        of_receivers = used - {metric.name for metric in APPLICATION_METRICS}
        assert [name for name in sorted(of_receivers) if not server.query(name)] == []

        def loaded() -> list[Any]:
            return [rule for group in server.ask("rules")["data"]["groups"] for rule in group["rules"]]

        eventually(lambda: all(rule["health"] == "ok" for rule in loaded()))
        assert {rule["name"] for rule in loaded()} == {rule["alert"] for rule in rules()}
        assert server.query("ALERTS") == []
        with pytest.raises(RemoteProtocolError, match="cookie"):
            feeders.connect("thief", addresses(served.receiver), cookie="no").open("x")
        refused = 'ALERTS{alertname="WallarooConnectorsRefused", alertstate="firing", reason="wrong-cookie"}'
        eventually(lambda: server.query(refused), "a real refusal fires its alert")
    finally:
        server.remove()


def test_two_scrapers_at_once_are_one_question(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    collect = served.receiver._collector.status

    def counted(*arguments: Any, **options: Any) -> Any:
        asked.append(1)
        return collect(*arguments, **options)

    monkeypatch.setattr(served.receiver._collector, "status", counted)
    telemetry = served.receiver._telemetry
    with ThreadPoolExecutor(8) as pool:
        texts = [future.result(WAIT) for future in [pool.submit(telemetry.facts) for _ in range(8)]]

    assert len({id(facts) for facts in texts}) == len(asked) < 8


def test_the_streams_of_a_status_are_also_a_data_frame(served: Served, feeders: Feeders) -> None:
    connector = feeders.connect("shop-4", addresses(served.receiver))
    stream = connector.open("open")
    stream.send(b"a row", id=7)
    stream.flushed()
    (row,) = served.receiver.status_frame(instance="shop-4").collect()

    assert (row["receiver"], row["instance"], row["stream"], row["committed"]) == ("orders", "shop-4", "open", "7")
    assert (row["slot_state"], row["instance_state"], row["lag_rows"]) == ("serving", "streaming", 0)
    assert row["sentence"]
    assert {one.name for one in dataclasses.fields(StreamStatus)} - {"name"} <= set(row.asDict())
    assert (row["rows_in"], row["ephemeral"]) == (1, False)


def test_counters_go_on_and_health_tells_of_a_worker_that_is_killed(served: Served, feeders: Feeders) -> None:
    before = served.values()
    victim = next(slot for slot in served.receiver.status().slots if slot.counts.get("messages"))
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    eventually(lambda: served.fetch("healthz")[0] == 503 or served.values()["wallaroo_worker_deaths_total"] == 1)
    eventually(lambda: served.fetch("healthz")[0] == 200)
    again = feeders.connect("shop-3", addresses(served.receiver))
    feeders.feed(again, numbered("one more", 1, MESSAGES)).result(WAIT)

    after = served.values()
    counters = [name for name in before if name.endswith(("_total", "_count", "_bucket"))]
    assert [name for name in counters if after[name] < before[name]] == []
    assert after["wallaroo_messages_total"] >= before["wallaroo_messages_total"] + MESSAGES
    assert after["wallaroo_worker_deaths_total"] == 1
    assert after["wallaroo_worker_submissions_total"] == 3


def test_a_stopped_query_is_not_healthy(served: Served) -> None:
    served.receiver._fed.query.stop()
    eventually(lambda: served.fetch("healthz")[0] == 503)

    assert json.loads(served.fetch("healthz")[1])["reasons"] == ["query: query-stopped"]
    assert served.values()["wallaroo_query_up"] == 0


def test_the_page_of_monitoring_names_these_tests() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")

    assert "tests/observe/test_receiver_metrics.py" in page
