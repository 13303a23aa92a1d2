"""The reference page of the metrics, written from their table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS, METRICS, Metric

HEAD = """\
# Metrics

The metrics of `/metrics` and of `Receiver.metrics()`; [monitoring.md](monitoring.md) says how to read them. Every
metric has the label `receiver` beside those of its row. A histogram has the parts `_bucket` (with the label `le`),
`_sum` and `_count`. The last column has the name and the unit of the same number by OpenTelemetry's conventions. This
page is generated from the table in `wallaroo_spark/observe/faces/metrics.py` by
`python -m proving.pages`.

"""
APPLICATION_HEAD = """\

## Applications of durable streams

The metrics of `/metrics` of an application, and of `Application.metrics()`;
[pipelines/see.md](pipelines/see.md#where-the-figures-come-from) says where they come from. Every metric has the label
`application` beside those of its row. The table is in `wallaroo_spark/observe/faces/metrics.py`.

"""
_TABLE = """\
| metric | kind | labels | meaning | OpenTelemetry |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """The whole page as Markdown, with one line for each metric in the tables' order."""
    return HEAD + _table(METRICS) + APPLICATION_HEAD + _table(APPLICATION_METRICS)


def _table(metrics: Iterable[Metric[Any]]) -> str:
    return _TABLE + "".join(f"{_line(metric)}\n" for metric in metrics)


def _line(metric: Metric[Any]) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | `{metric.otel}`, `{metric.unit}` |"
