"""OpenTelemetry's SDK for Python, as a program with the contract of producers.

Each message is a span whose name is its number, of the service that ``--client-id`` names. The exporter has its
defaults, sends all spans that are due, and a span is answered when the exporter tells success of its export. An export
that has failed, which the SDK drops, is given up.
"""

from __future__ import annotations

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from proving.producers.load import Load, load_of


def spans(load: Load, numbers: range) -> list[ReadableSpan]:
    """Spans with these names."""
    resource = Resource({"service.name": load.client_id})
    tracer = TracerProvider(resource=resource, shutdown_on_exit=False).get_tracer("proving")
    made = [tracer.start_span(str(number)) for number in numbers]
    for span in made:
        span.end()
    return [span for span in made if isinstance(span, ReadableSpan)]


def main() -> None:
    """Send everything."""
    load = load_of()
    headers = {"authorization": f"Bearer {load.password}"} if load.password else {}
    exporter = OTLPSpanExporter(endpoint=f"http://{load.bootstrap}", insecure=True, headers=headers)
    for numbers in load.requests():
        result = exporter.export(spans(load, numbers))
        load.tell(numbers, "" if result is SpanExportResult.SUCCESS else "the exporter has failed")
    exporter.shutdown()
    print("end", flush=True)


if __name__ == "__main__":
    main()
