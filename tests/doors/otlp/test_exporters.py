"""The exporters of OpenTelemetry's Python SDK, unchanged but for the endpoint, against a real worker."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.doors.otlp.requests import COOKIE, committed, grpc_of, http_of, running
from wallaroo_spark.otel.expand import Expansion
from wallaroo_spark.testing.fake_worker import FakeWorker

SHOP = Resource.create({"service.name": "shop"})


def grpc_settings(worker: FakeWorker, signal: str) -> dict[str, Any]:
    return {"endpoint": grpc_of(worker), "insecure": True, "headers": {"authorization": f"Bearer {COOKIE}"}}


def gzip_settings(worker: FakeWorker, signal: str) -> dict[str, Any]:
    return {**grpc_settings(worker, signal), "compression": grpc.Compression.Gzip}


def http_settings(worker: FakeWorker, signal: str) -> dict[str, Any]:
    return {"endpoint": f"{http_of(worker)}/v1/{signal}", "headers": {"authorization": f"Bearer {COOKIE}"}}


def http_gzip_settings(worker: FakeWorker, signal: str) -> dict[str, Any]:
    return {**http_settings(worker, signal), "compression": Compression.Gzip}


WAYS = {
    "grpc": (GrpcSpans, GrpcLogs, GrpcMetrics, grpc_settings),
    "grpc gzip": (GrpcSpans, GrpcLogs, GrpcMetrics, gzip_settings),
    "http": (HttpSpans, HttpLogs, HttpMetrics, http_settings),
    "http gzip": (HttpSpans, HttpLogs, HttpMetrics, http_gzip_settings),
}


def rows(worker: FakeWorker, signal: str) -> list[dict[str, Any]]:
    """The rows of a signal's table."""
    batches = [batch for batch in worker.committed.to_batches() if batch.num_rows]
    wanted = [batch.filter([name == signal for name in batch["stream"].to_pylist()]) for batch in batches]
    return [row for batch in Expansion(signal)(wanted) for row in batch.to_pylist()]


@pytest.mark.parametrize("way", WAYS)
def test_an_exporter_with_its_own_defaults_is_answered_when_committed(way: str) -> None:
    make_spans, make_logs, make_metrics, settings = WAYS[way]
    with running(cookie=COOKIE) as worker, worker.committing():
        tracing = TracerProvider(resource=SHOP)
        tracing.add_span_processor(BatchSpanProcessor(make_spans(**settings(worker, "traces"))))
        with tracing.get_tracer("library").start_as_current_span("GET /", attributes={"http.status": 200}):
            pass
        assert tracing.force_flush()
        logging_provider = LoggerProvider(resource=SHOP)
        logging_provider.add_log_record_processor(BatchLogRecordProcessor(make_logs(**settings(worker, "logs"))))
        record = LogRecord(body="it is late", severity_number=SeverityNumber.WARN, severity_text="WARN")
        logging_provider.get_logger("library").emit(record)
        assert logging_provider.force_flush()
        metering = MeterProvider(
            [PeriodicExportingMetricReader(make_metrics(**settings(worker, "metrics")), math.inf)], resource=SHOP
        )
        metering.get_meter("library").create_counter("orders").add(3)
        assert metering.force_flush()
        tracing.shutdown()
        logging_provider.shutdown()
        metering.shutdown()
    assert {(row["instance"], row["stream"]) for row in committed(worker)} == {
        ("otlp/shop", "traces"), ("otlp/shop", "logs"), ("otlp/shop", "metrics")
    }  # fmt: skip
    (span,) = rows(worker, "traces")
    assert (span["service_name"], span["name"], span["kind"]) == ("shop", "GET /", "SPAN_KIND_INTERNAL")
    assert span["attributes"] == '{"http.status":200}'
    (record_row,) = rows(worker, "logs")
    assert (record_row["body"], record_row["severity_text"]) == ('"it is late"', "WARN")
    assert {row["sum"]["value"] for row in rows(worker, "metrics") if row["name"] == "orders"} == {3.0}
