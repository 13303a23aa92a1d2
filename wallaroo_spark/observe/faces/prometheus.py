"""The metrics in Prometheus' text format, by the package prometheus_client (the extra ``prometheus``).

Source: ``docs/monitoring.md#metrics``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from wallaroo_spark.extras import command
from wallaroo_spark.observe.faces.metrics import Facts, Metric, MetricTable
from wallaroo_spark.observe.figures import FigureKind

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MISSING = (
    "the driver's Python has no package prometheus_client, so there are no metrics in Prometheus' format; install the "
    f"extra: {command(['prometheus'])}"
)


def available() -> bool:
    """Whether the extra ``prometheus`` is installed."""
    return importlib.util.find_spec("prometheus_client") is not None


S = TypeVar("S")


def exposition(facts: Facts[S], metrics: MetricTable[S]) -> bytes:
    """The text of all metrics, with HELP and TYPE for each. Raises ImportError without the extra ``prometheus``."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    subject = metrics.name(facts.status)

    class Once(Collector):
        def collect(self) -> Iterator[Family]:
            return (_family(metric, facts, metrics.label, subject) for metric in metrics)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry)


def _family(metric: Metric[S], facts: Facts[S], label: str, subject: str) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    labels = [label, *metric.labels]
    if metric.kind is FigureKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for sample in metric.samples(facts):
            buckets = [(_bound(bound), float(count)) for bound, count in sample.buckets]
            histogram.add_metric([subject, *sample.labels], buckets, sample.value)
        return histogram
    kind = CounterMetricFamily if metric.kind is FigureKind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.help, labels=labels)
    for sample in metric.samples(facts):
        family.add_metric([subject, *sample.labels], sample.value)
    return family


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)
