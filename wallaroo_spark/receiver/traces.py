"""Spans of sampled messages, from their arrival at a worker to their acknowledgement, by the OpenTelemetry API.

Workers follow the messages and record the times; a thread of the driver asks the workers and makes the spans. The user
sets up the OpenTelemetry SDK, with an exporter, in the driver's program alone. Source: ``docs/monitoring.md#traces``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from wallaroo_spark.errors import ConfigurationError, TransportError, one_line
from wallaroo_spark.extras import command, installed
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.registry import Lease

log = one_line("wallaroo_spark.receiver")

ASK_SECONDS = 1.0
"""Pause between two requests to the workers. A choice: workers keep more finished messages than a usual sample has in a
second."""
STOP_SECONDS = 5.0
"""How long a stop waits for the last question. A choice that bounds a stop."""
STEPS = (
    ("wallaroo.plan", "received_at", "planned_at"),
    ("wallaroo.read", "planned_at", "read_at"),
    ("wallaroo.commit", "read_at", "committed_at"),
    ("wallaroo.acknowledge", "committed_at", "acknowledged_at"),
)
"""The spans within ``wallaroo.message``: each with the names of the times at which it begins and ends."""


Workers = Callable[[], Mapping[int, tuple[Lease, WorkerClient]]]
"""The workers by slot, each with its lease."""


def require(every: int) -> None:
    """Raise :class:`ConfigurationError` when traces are configured and the extra ``otel`` is missing."""
    if every and not installed("opentelemetry"):
        raise ConfigurationError(
            f"option traceSample is {every}, and the driver's Python has no package opentelemetry-api; install the "
            f"extra ({command(['otel'])}), or set traceSample to 0",
            code="package-missing",
            option="traceSample",
        )


class Tracer:
    """The driver's thread that asks the workers for followed messages, from :meth:`start` to :meth:`stop`.

    It makes a span for the whole path of a message, and one within it for each timed step.
    """

    def __init__(self, receiver: str, workers: Workers) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("wallaroo_spark")
        self._receiver = receiver
        self._workers = workers
        self._last: dict[tuple[int, int], int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wallaroo-{receiver}-traces", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask once more, and end."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.wait(ASK_SECONDS):
            self.ask()
        self.ask()

    def ask(self) -> None:
        """Ask all workers once. A worker that does not answer is asked again the next time."""
        workers = {(slot, lease.generation): client for slot, (lease, client) in self._workers().items()}
        self._last = {known: serial for known, serial in self._last.items() if known in workers}
        for (slot, generation), worker in workers.items():
            try:
                samples = worker.traced(self._last.get((slot, generation), 0))
            except TransportError as error:
                log.debug("slot %d was not asked for traces: %s", slot, error)
                continue
            for sample in samples:
                self._last[slot, generation] = sample["serial"]
                self._make_spans(slot, sample)

    def _make_spans(self, slot: int, sample: Mapping[str, Any]) -> None:
        """Make the spans of one message."""
        attributes = {
            "wallaroo.receiver": self._receiver,
            "wallaroo.slot": slot,
            "wallaroo.instance": sample["instance"],
            "wallaroo.stream": sample["stream"],
            "wallaroo.stream_id": sample["stream_id"],
            "wallaroo.message_id": sample["message_id"],
            "wallaroo.batch": sample["batch"],
        }
        # No parent: the program that starts the receiver may have a span of its own.
        nothing = self._trace.set_span_in_context(self._trace.INVALID_SPAN)
        whole = self._tracer.start_span(
            "wallaroo.message", nothing, attributes=attributes, start_time=_ns(sample, "received_at")
        )
        within = self._trace.set_span_in_context(whole)
        for name, begin, end in STEPS:
            if sample[begin] and sample[end]:
                step = self._tracer.start_span(
                    name, within, attributes={"wallaroo.batch": sample["batch"]}, start_time=_ns(sample, begin)
                )
                step.end(_ns(sample, end))
        whole.end(_ns(sample, "acknowledged_at"))


def _ns(sample: Mapping[str, Any], name: str) -> int:
    return int(sample[name]) * 1000
