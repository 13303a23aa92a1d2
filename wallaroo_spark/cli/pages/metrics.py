"""The reference page of the metrics, written from their table.

Run ``python -m wallaroo_spark.cli.pages.metrics > docs/metrics.md`` after the table has changed.
"""

from __future__ import annotations

import sys

from wallaroo_spark.telemetry.table import METRICS, Metric

HEAD = """\
# Metrics

The metrics of `/metrics` and of `Receiver.metrics()`; [monitoring.md](monitoring.md) says how to read them. Every
metric has the label `receiver` beside those of its row. A histogram has the parts `_bucket` (with the label `le`),
`_sum` and `_count`. The last column has the name and the unit of the same number by OpenTelemetry's conventions. This
page is generated from the table in `wallaroo_spark/telemetry/table.py` by
`python -m wallaroo_spark.cli.pages.metrics > docs/metrics.md`.

| metric | kind | labels | meaning | OpenTelemetry |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """The whole page as Markdown, with one line for each metric in the table's order."""
    return HEAD + "".join(f"{_line(metric)}\n" for metric in METRICS)


def _line(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} | `{metric.otel}`, `{metric.unit}` |"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
