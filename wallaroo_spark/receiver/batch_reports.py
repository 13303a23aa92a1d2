"""Spark's progress reports of a query, for the histogram of the seconds of its batches.

Source: ``docs/monitoring.md#metrics``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from wallaroo_spark.telemetry import BatchReport, BatchTimes


def read_batches(query: Any, times: BatchTimes) -> None:
    """Add the batches that ``times`` has not counted yet, if Spark still has their reports."""
    found = []
    for text in _newest_first(query):
        report = _report(json.loads(text))
        if times.known(report.run, report.batch):
            break
        found.append(report)
    times.add(reversed(found))


def _newest_first(query: Any) -> Iterator[str]:
    java_query = getattr(query, "_jsq", None)
    if java_query is None:
        yield from (progress.json for progress in reversed(query.recentProgress))
        return
    # One call to Java for each report that is new; PySpark would read every value of all of them.
    reports = java_query.recentProgress()
    for index in reversed(range(len(reports))):
        yield reports[index].json()


def _report(report: dict[str, Any]) -> BatchReport:
    durations = {str(name): int(value) for name, value in (report.get("durationMs") or {}).items()}
    return BatchReport(str(report["runId"]), int(report["batchId"]), int(report.get("numInputRows") or 0), durations)
