"""The dashboard of applications for Grafana: a panel for each metric of their table."""

from __future__ import annotations

import itertools
import json
from typing import Any

from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS, Metric
from wallaroo_spark.observe.figures import FigureKind

FILE = "wallaroo-applications.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_NAMES = "label_values(wallaroo_application_up, application)"
_HEADINGS = {
    "": "Application",
    "pipeline": "Pipelines",
    "stage": "Stages",
    "stream": "Streams",
    "group": "Groups",
    "gateway": "Gateways",
}
"""The label that names the objects of a metric → the heading of its panels, in the order of the dashboard."""
_UNITS = {"s": "s", "By": "bytes", "1": "none"}
_RATES = {"s": "none", "By": "Bps"}
_WIDTH, _HEIGHT = 12, 8


def dashboard() -> str:
    """The file's text."""
    panels: list[dict[str, Any]] = []
    down = 0
    for label, heading in _HEADINGS.items():
        panels.append({"type": "row", "title": heading, "gridPos": {"x": 0, "y": down, "w": 24, "h": 1}})
        found = [metric for metric in APPLICATION_METRICS if _subject(metric) == label]
        for number, metric in enumerate(found):
            place = {"x": number % 2 * _WIDTH, "y": down + 1 + number // 2 * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(metric, place))
        down += 1 + (len(found) + 1) // 2 * _HEIGHT
    for number, panel in zip(itertools.count(1), panels, strict=False):
        panel["id"] = number
    return json.dumps(_around(panels), indent=2) + "\n"


def _subject(metric: Metric[Any]) -> str:
    """The last label of a metric that names an object; empty for the application itself."""
    return next((label for label in reversed(metric.labels) if label in _HEADINGS), "")


def _panel(metric: Metric[Any], place: dict[str, int]) -> dict[str, Any]:
    counter, histogram = metric.kind is FigureKind.COUNTER, metric.kind is FigureKind.HISTOGRAM
    labels = ("application", *metric.labels)
    by = f"by ({', '.join((*labels, 'le') if histogram else labels)})"
    series = f'{metric.name}{"_bucket" if histogram else ""}{{application=~"$application"}}'
    expression = f"sum {by} (rate({series}[$__rate_interval]))" if counter or histogram else f"sum {by} ({series})"
    if histogram:
        expression = f"histogram_quantile(0.95, {expression})"
    title = metric.help.partition(". ")[0].rstrip(".").partition("; ")[0].partition(": ")[0]
    units = _RATES if counter else _UNITS
    return {
        "type": "timeseries",
        "title": title + (", a second" if counter else ", 95th percentile" if histogram else ""),
        "description": metric.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": units.get(metric.unit, "short"), "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": " ".join(f"{{{{{label}}}}}" for label in labels),
            }
        ],
    }


def _around(panels: list[dict[str, Any]]) -> dict[str, Any]:
    chosen = {"text": "All", "value": "$__all"}
    application = {"name": "application", "label": "Application", "type": "query", "datasource": _SOURCE, "refresh": 2}
    application |= {"definition": _NAMES, "query": {"query": _NAMES, "refId": "application"}, "current": chosen}
    application |= {"includeAll": True, "multi": True, "allValue": ".*"}
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    return {
        "title": "Wallaroo applications",
        "uid": "wallaroo-applications",
        "tags": ["wallaroo", "spark"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [source, application]},
        "annotations": {"list": []},
        "panels": panels,
    }
