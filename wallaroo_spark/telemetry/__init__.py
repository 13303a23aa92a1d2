"""Metrics, health and logs of a receiver. The names load on first use, because executors need the logs alone.

- :mod:`.table` -- the one table of metrics
- :mod:`.aggregate` -- counters that never go backwards
- :mod:`.batches` -- the seconds of each phase of a batch
- :mod:`.exposition` -- the metrics in Prometheus' text format
- :mod:`.health` -- whether the receiver works, for load balancers
- :mod:`.endpoint` -- the driver's routes
- :mod:`.logs` -- the log of a process on an executor

Source: ``docs/monitoring.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.telemetry.aggregate import Aggregate
    from wallaroo_spark.telemetry.batches import BatchReport, BatchTimes
    from wallaroo_spark.telemetry.endpoint import Telemetry
    from wallaroo_spark.telemetry.logs import LogSettings, log_to_stderr, secrets_of
    from wallaroo_spark.telemetry.table import METRICS, Facts, Metric, Sample

_HOMES = {
    "METRICS": "table",
    "Aggregate": "aggregate",
    "BatchReport": "batches",
    "BatchTimes": "batches",
    "Facts": "table",
    "LogSettings": "logs",
    "Metric": "table",
    "Sample": "table",
    "Telemetry": "endpoint",
    "log_to_stderr": "logs",
    "secrets_of": "logs",
}

__all__ = [
    "METRICS",
    "Aggregate",
    "BatchReport",
    "BatchTimes",
    "Facts",
    "LogSettings",
    "Metric",
    "Sample",
    "Telemetry",
    "log_to_stderr",
    "secrets_of",
]

__getattr__, __dir__ = lazy_names(__name__, {name: f"{__name__}.{module}" for name, module in _HOMES.items()})
