"""OTLP requests as the SDKs make them, and workers that take them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import grpc
import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.waiting import SECONDS
from wallaroo_spark.doors.otlp.door import SERVICES
from wallaroo_spark.doors.otlp.rows import named_by_service
from wallaroo_spark.testing.fake_worker import FakeWorker

NANOS = 1_795_514_205_581_000_557
COOKIE = "c00kie"
METHODS = {signal: method for method, signal in SERVICES.items()}


def resource(group: Any, service: str | None = "shop") -> Any:
    """Name the service of a group, behind another attribute."""
    if service is not None:
        for key, value in (("telemetry.sdk.language", "python"), ("service.name", service)):
            group.resource.attributes.add(key=key).value.string_value = value
    return group


def traces(*names: str, service: str | None = "shop") -> ExportTraceServiceRequest:
    """A request with a span of each name."""
    request = ExportTraceServiceRequest()
    spans = resource(request.resource_spans.add(), service).scope_spans.add()
    spans.scope.name = "library"
    for number, name in enumerate(names):
        spans.spans.add(
            name=name,
            trace_id=bytes(15) + b"\x01",
            span_id=number.to_bytes(8, "big"),
            kind=2,
            start_time_unix_nano=NANOS,
            end_time_unix_nano=NANOS + 5_000_000,
        )
    return request


def logs(*bodies: str, service: str | None = "shop") -> ExportLogsServiceRequest:
    """A request with a log record of each body."""
    request = ExportLogsServiceRequest()
    records = resource(request.resource_logs.add(), service).scope_logs.add()
    for body in bodies:
        records.log_records.add(time_unix_nano=NANOS, severity_number=9).body.string_value = body
    return request


def metrics(service: str | None = "shop") -> ExportMetricsServiceRequest:
    """A request with a metric of each kind, each with one data point."""
    request = ExportMetricsServiceRequest()
    scope = resource(request.resource_metrics.add(), service).scope_metrics.add()
    scope.metrics.add(name="g").gauge.data_points.add(time_unix_nano=NANOS, as_int=7)
    total = scope.metrics.add(name="s", unit="1").sum
    total.aggregation_temporality, total.is_monotonic = 2, True
    total.data_points.add(time_unix_nano=NANOS, as_double=1.5).exemplars.add(as_int=3, trace_id=b"\x01" * 16)
    histogram = scope.metrics.add(name="h").histogram
    histogram.aggregation_temporality = 1
    histogram.data_points.add(count=3, sum=4.5, bucket_counts=[1, 2], explicit_bounds=[1.0], max=3.0)
    scope.metrics.add(name="e").exponential_histogram.data_points.add(count=1, scale=-2).positive.bucket_counts.append(
        1
    )
    quantiles = scope.metrics.add(name="q").summary.data_points.add(count=2, sum=9.0).quantile_values
    quantiles.add(quantile=0.5, value=4.0)
    return request


def committed(worker: FakeWorker) -> list[dict[str, Any]]:
    """The rows that Spark would have, of all committed batches."""
    parts = [named_by_service(batch) for batch in worker.committed.to_batches() if batch.num_rows]
    return pa.Table.from_batches(parts).to_pylist() if parts else []


@contextmanager
def running(**options: Any) -> Iterator[FakeWorker]:
    """A worker with both doors."""
    with FakeWorker(otlp_port=0, http_port=0, **options) as worker:
        yield worker


def door_of(worker: FakeWorker, name: str) -> dict[str, Any]:
    """A door as the worker's status has it."""
    return next(one for one in worker.status()["door_list"] if one["door"] == name)


def waiting(worker: FakeWorker) -> int:
    """The requests that wait at both doors."""
    return sum(one["waiting"] for one in worker.status()["door_list"])


def grpc_of(worker: FakeWorker) -> str:
    return str(door_of(worker, "otlp")["address"])


def http_of(worker: FakeWorker) -> str:
    return str(door_of(worker, "http")["address"])


def export(worker: FakeWorker, body: bytes, signal: str = "traces", seconds: float = SECONDS, **settings: Any) -> bytes:
    """Send a body by gRPC; returns the answer's. Raises ``grpc.RpcError``."""
    with grpc.insecure_channel(grpc_of(worker)) as channel:
        answer: bytes = method_of(channel, signal)(body, timeout=seconds, **settings)
        return answer


def method_of(channel: grpc.Channel, signal: str = "traces") -> Any:
    """The method of a signal, which takes and returns bytes; of an unknown one, a method that nobody serves."""
    return channel.unary_unary(METHODS.get(signal, f"/{signal}/Export"))


def answers(address: str) -> bool:
    """Whether a door at this address takes requests: its worker serves, and a query reads."""
    with suppress(grpc.RpcError), grpc.insecure_channel(address) as channel:
        return bool(method_of(channel)(b"", timeout=5) == b"")
    return False


def post(
    worker: FakeWorker, body: bytes, signal: str = "traces", media: str = "application/x-protobuf", **fields: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a body by HTTP; returns status, fields and body of the answer."""
    place = urlsplit(http_of(worker))
    named = {name.replace("_", "-"): value for name, value in fields.items()} | {"Content-Type": media}
    with closing(http.client.HTTPConnection(str(place.hostname), place.port or 0, timeout=SECONDS)) as connection:
        connection.request("POST", f"/v1/{signal}", body, named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
