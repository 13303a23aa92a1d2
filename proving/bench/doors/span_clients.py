"""Clients that send spans as fast as they are answered: ``python -m proving.bench.doors.span_clients JSON``.

Each has one request under way, all over one connection. It prints a line of JSON with its counts in the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
AGAIN_SECONDS = 0.1
ATTRIBUTES = {"http.request.method": "GET", "url.path": "/orders/4711", "server.address": "shop.example.com"}


def body(spans: int) -> bytes:
    """A request with so many spans of one service."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = group.scope_spans.add()
    scope.scope.name = "bench"
    for number in range(spans):
        span = scope.spans.add(name="GET /orders", kind=2)
        span.trace_id, span.span_id = number.to_bytes(16, "big"), number.to_bytes(8, "big")
        span.start_time_unix_nano = time.time_ns()
        span.end_time_unix_nano = span.start_time_unix_nano + 5_000_000
        for key, value in ATTRIBUTES.items():
            span.attributes.add(key=key).value.string_value = value
        span.attributes.add(key="http.response.status_code").value.int_value = 200
    return request.SerializeToString()


async def send(place: str, clients: int, spans: int, seconds: float) -> dict[str, int]:
    """Send for so long; how often each code of gRPC was the answer."""
    content, until = body(spans), time.monotonic() + seconds
    answers: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(place) as channel:
        export: Any = channel.unary_unary(METHOD)

        async def client() -> None:
            while time.monotonic() < until:
                try:
                    await export(content)
                    answers["OK"] += 1
                except grpc.aio.AioRpcError as error:
                    answers[error.code().name] += 1
                    await asyncio.sleep(AGAIN_SECONDS)

        await asyncio.gather(*(client() for _ in range(clients)))
    return dict(answers)


if __name__ == "__main__":
    print(json.dumps({"answers": asyncio.run(send(**json.loads(sys.argv[1])))}), flush=True)
