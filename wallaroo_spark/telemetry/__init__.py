"""Metrics, health, logs and traces of a receiver.

- :mod:`.table` -- the one table of metrics
- :mod:`.aggregate` -- counters that never go backwards
- :mod:`.batches` -- the seconds of each phase of a batch
- :mod:`.exposition` -- the metrics in Prometheus' text format
- :mod:`.health` -- whether the receiver works, for load balancers

Source: ``docs/monitoring.md``.
"""

from wallaroo_spark.telemetry.aggregate import Aggregate
from wallaroo_spark.telemetry.batches import BatchTimes
from wallaroo_spark.telemetry.endpoint import Telemetry
from wallaroo_spark.telemetry.health import Health, health
from wallaroo_spark.telemetry.table import METRICS, Facts, Metric, Sample

__all__ = ["METRICS", "Aggregate", "BatchTimes", "Facts", "Health", "Metric", "Sample", "Telemetry", "health"]
