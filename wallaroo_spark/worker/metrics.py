"""A worker's status as Prometheus metrics.

A collector reads ``status()`` when it is scraped, so nothing is counted twice and the hot path is not touched.

Source: ``docs/architecture.md#the-picture``; the counts are those of :mod:`.machine.connections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

GAUGES = {
    "ready": "Whether the driver has said where the query stands.",
    "epoch": "How often the query has started.",
    "batch": "The newest batch that the driver has said to be committed; -1 before the first.",
    "sessions": "Connectors that are being served.",
    "streams": "Streams that are open, or of which something is not committed.",
    "buffered_bytes": "Bytes of messages that are not committed, and of frames that are under way.",
    "unfinished_bytes": "Bytes of frames that are under way: their end has not come.",
    "budget_bytes": "What may be buffered of them (memoryBudget).",
    "registry_away": "Whether the registry did not answer last time.",
}
COUNTERS = {
    "connections": "Connections accepted.",
    "bytes": "Bytes received.",
    "messages": "New messages taken in.",
    "replayed": "Messages dropped because they were taken in before.",
    "peer-errors": "Sessions that the connector ended with an ERROR.",
    "registry-failures": "Questions that the registry did not answer.",
    "stale-commits": "Words of the driver that were no news.",
    "shed-streams": "Streams let go of to make room for what a read waits for.",
    "unfinished-frames": "Sessions ended because a frame did not come to its end while the worker was full.",
    "streams-too-large": "Sessions ended because a stream did not fit the budget.",
    "internal-errors": "Sessions ended by an error of this program.",
}
_FAULT = "fault:"


class WorkerCollector(Collector):
    """Metrics of the workers whose statuses ``statuses`` returns, told apart by the label ``slot``."""

    def __init__(self, statuses: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client at every scrape."""
        statuses = list(self._statuses())
        for name, help in GAUGES.items():
            gauge = GaugeMetricFamily(f"wallaroo_worker_{name}", help, labels=["slot"])
            for status in statuses:
                if name in status:
                    gauge.add_metric([str(status["slot"])], float(status[name]))
            yield gauge
        for name, help in COUNTERS.items():
            counter = CounterMetricFamily(f"wallaroo_{name.replace('-', '_')}", help, labels=["slot"])
            for status in statuses:
                counter.add_metric([str(status["slot"])], status["counts"].get(name, 0))
            yield counter
        faults = CounterMetricFamily("wallaroo_faults", "Rules that peers broke, by name.", labels=["slot", "fault"])
        for status in statuses:
            for name, count in status["counts"].items():
                if name.startswith(_FAULT):
                    faults.add_metric([str(status["slot"]), name.removeprefix(_FAULT)], count)
        yield faults
