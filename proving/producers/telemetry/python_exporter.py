"""OpenTelemetry's SDK for Python, as a program with the contract of producers.

Each message is a span whose name is its number, of the service that ``--client-id`` names. The exporter has its
defaults, sends all spans that are due, and a span is answered when the exporter tells success of its export. An export
that has failed, which the SDK drops, is given up. With ``--collector FILE``, the program of a Collector, the spans go
to it, and it sends them on; its queue is off, so that it passes on the answers, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from proving.producers.load import Load, load_of
from wallaroo_spark.registry.embedded import lasting_port

START_SECONDS = 30.0
"""The longest wait for a Collector that starts."""


def spans(load: Load, numbers: range) -> list[ReadableSpan]:
    """Spans with these names."""
    resource = Resource({"service.name": load.client_id})
    tracer = TracerProvider(resource=resource, shutdown_on_exit=False).get_tracer("proving")
    made = [tracer.start_span(str(number)) for number in numbers]
    for span in made:
        span.end()
    return [span for span in made if isinstance(span, ReadableSpan)]


@contextlib.contextmanager
def collector(program: str, door: str, headers: dict[str, str]) -> Iterator[str]:
    """A running Collector that sends to the door; its address."""
    port = lasting_port()
    settings = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {
            "otlp": {
                "endpoint": door,
                "tls": {"insecure": True},
                "headers": headers,
                "sending_queue": {"enabled": False},
            }
        },
        "service": {
            "telemetry": {"metrics": {"level": "none"}},
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp"]}},
        },
    }
    with tempfile.TemporaryDirectory(prefix="collector-") as folder:
        file = Path(folder, "collector.yaml")
        file.write_text(json.dumps(settings), encoding="utf-8")
        process = subprocess.Popen([program, "--config", str(file)], stdin=subprocess.DEVNULL)
        try:
            _await(process, port)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the Collector does not listen on port {port}")
        time.sleep(0.1)


def main() -> None:
    """Send everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--collector")
    load = load_of(parser)
    program = parser.parse_args().collector
    headers = {"authorization": f"Bearer {load.password}"} if load.password else {}
    with contextlib.ExitStack() as opened:
        place = opened.enter_context(collector(program, load.bootstrap, headers)) if program else load.bootstrap
        exporter = OTLPSpanExporter(endpoint=f"http://{place}", insecure=True, headers=headers)
        opened.callback(exporter.shutdown)
        for numbers in load.requests():
            result = exporter.export(spans(load, numbers))
            load.tell(numbers, "" if result is SpanExportResult.SUCCESS else "the exporter has failed")
    print("end", flush=True)


if __name__ == "__main__":
    main()
