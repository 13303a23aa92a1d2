"""The metrics and the health of one receiver, collected once for all requests that arrive at the same time.

Source: ``docs/monitoring.md``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, TypeVar

from wallaroo_spark.status import ReceiverStatus
from wallaroo_spark.telemetry import exposition
from wallaroo_spark.telemetry.aggregate import Aggregate
from wallaroo_spark.telemetry.batches import BatchTimes
from wallaroo_spark.telemetry.health import health
from wallaroo_spark.telemetry.shared_call import SharedCall
from wallaroo_spark.telemetry.table import METRICS, Facts, Metric, MetricKind
from wallaroo_spark.web import Response, Route, Routes

F = TypeVar("F", bound=exposition.Subject)


def values(facts: F, metrics: Iterable[Metric[F]]) -> dict[str, list[dict[str, Any]]]:
    """The values of all metrics by name, as JSON-ready values."""
    found: dict[str, list[dict[str, Any]]] = {}
    for metric in metrics:
        found[metric.name] = [
            {
                "labels": dict(zip(metric.labels, sample.labels, strict=True)),
                **(
                    {
                        "sum": sample.value,
                        "count": sample.buckets[-1][1],
                        "buckets": {f"{bound:g}": count for bound, count in sample.buckets},
                    }
                    if metric.kind is MetricKind.HISTOGRAM
                    else {"value": sample.value}
                ),
            }
            for sample in metric.samples(facts)
        ]
    return found


def metrics_page(facts: Callable[[], F], metrics: Iterable[Metric[F]], label: str) -> Response:
    """The response of ``/metrics``."""
    if not exposition.available():
        return Response.text(exposition.MISSING, HTTPStatus.NOT_IMPLEMENTED)
    return Response(exposition.CONTENT_TYPE, exposition.exposition(facts(), metrics, label))


class Telemetry:
    """Keeps the counters of a receiver for as long as the receiver's object lives.

    ``status`` takes a snapshot, and ``read_batches`` adds the reports of batches that are not counted yet. Both are
    called once for all requests that arrive at the same time. ``instances`` is the number of connector instances that
    have metrics of their own. The driver counts in :attr:`driver`.
    """

    def __init__(
        self, status: Callable[[], ReceiverStatus], read_batches: Callable[[BatchTimes], None], instances: int
    ) -> None:
        self.driver: Counter[str] = Counter()
        self._status = SharedCall(status)
        self._read_batches = read_batches
        self._instances = instances
        self._aggregate = Aggregate()
        self._batches = BatchTimes()
        self._lock = threading.Lock()
        self._gather = SharedCall(self._gathered)

    def observe(self, status: ReceiverStatus) -> None:
        """Add a snapshot that was taken for another purpose, so that a dying worker's last counts are not lost."""
        with self._lock:
            self._aggregate.add(status)

    def facts(self) -> Facts:
        """Everything that the metrics of this moment are made from."""
        return self._gather()

    def _gathered(self) -> Facts:
        status = self._status()
        self._read_batches(self._batches)
        with self._lock:
            self._aggregate.add(status)
            return Facts(status, self._aggregate.counts(), Counter(self.driver), self._batches, self._instances)

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The values of all metrics by name, as JSON-ready values; see ``Receiver.metrics``."""
        return values(self.facts(), METRICS)

    def routes(self) -> Routes:
        """``/metrics`` and ``/healthz``."""
        return {
            "/metrics": Route(lambda request: self._metrics_page()),
            # Probes of load balancers and Kubernetes present no token, and the answer names nothing of the receiver.
            "/healthz": Route(lambda request: self._health_page(), open=True),
        }

    def _metrics_page(self) -> Response:
        return metrics_page(self.facts, METRICS, "receiver")

    def _health_page(self) -> Response:
        found = health(self._status())
        return Response.json(found.to_json(), HTTPStatus.OK if found.healthy else HTTPStatus.SERVICE_UNAVAILABLE)
