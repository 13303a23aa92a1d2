"""Bodies of OTLP requests as messages: protobuf or JSON, as they are or compressed by gzip. Pure.

Source: OTLP specification, "JSON Protobuf Encoding"; ``docs/doors/opentelemetry.md``.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from wallaroo_spark.doors.http.encodings import decompressed
from wallaroo_spark.doors.http.problems import Problem
from wallaroo_spark.doors.otlp.bodies import BRACE, GZIP, MOST_UNPACKED

REQUESTS: dict[str, Any] = {
    "logs": ExportLogsServiceRequest,
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
}
"""The message of each signal."""
_IDS = frozenset({"traceId", "spanId", "parentSpanId"})


class UnreadableRequest(Exception):
    """A body that is no request; the text says why."""


def read(signal: str, body: bytes) -> Any:
    """The request of a body. Raises :class:`UnreadableRequest`."""
    try:
        if body.startswith(GZIP):
            body = b"".join(decompressed("gzip", body, MOST_UNPACKED))
        if body.lstrip().startswith(BRACE):
            return ParseDict(_with_ids(json.loads(body)), REQUESTS[signal](), ignore_unknown_fields=True)
        return REQUESTS[signal].FromString(body)
    except Problem as problem:
        raise UnreadableRequest(problem.detail) from None
    except MemoryError:
        raise
    except Exception as error:
        # protobuf also raises errors that are none of its own, as for a name that UTF-8 has no bytes for.
        raise UnreadableRequest(str(error)[:200] or type(error).__name__) from None


def _with_ids(value: Any) -> Any:
    """The document with its ids, which OTLP writes in hexadecimal, as protobuf's JSON form has them."""
    if isinstance(value, list):
        return [_with_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in _IDS and isinstance(one, str) else _with_ids(one)
        for name, one in value.items()
    }
