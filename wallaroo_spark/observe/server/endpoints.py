"""The metrics and the health of a receiver or an application, collected once for all requests that arrive at the same
time.

Source: ``docs/monitoring.md``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.causes import OLD_SECONDS
from wallaroo_spark.observe.counters import Aggregate, BatchTimes
from wallaroo_spark.observe.faces import prometheus as exposition
from wallaroo_spark.observe.faces.application_metrics import APPLICATION_METRICS, ApplicationFacts
from wallaroo_spark.observe.faces.health import health
from wallaroo_spark.observe.faces.metrics import METRICS, Facts, Metric
from wallaroo_spark.observe.figures import FigureKind
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.server.messages import Response, Route, Routes

T = TypeVar("T")


HEALTH_SECONDS = 0.5
"""How long /healthz waits for a new snapshot. A choice: probes of Kubernetes wait a second by default."""


class SharedCall(Generic[T]):
    """Calls ``work`` once for all threads that call at the same time."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._running: Future[T] | None = None
        self._newest: tuple[float, T] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> T:
        """The result of the running call, or of a new one. Raises the error of ``work``, in every thread."""
        future, new = self._begun()
        if new:
            self._run(future)
        return future.result()

    def soon(self) -> T | None:
        """The result if it comes within HEALTH_SECONDS, else the newest one unless it is old; None for neither.

        Raises the error of ``work``. A call that takes longer goes on in a thread of its own.
        """
        future, new = self._begun()
        if new:
            threading.Thread(target=self._run, args=(future,), name="wallaroo-health", daemon=True).start()
        try:
            return future.result(HEALTH_SECONDS)
        except TimeoutError:
            at, result = self._newest or (float("-inf"), None)
            return result if time.monotonic() - at < OLD_SECONDS else None

    def _begun(self) -> tuple[Future[T], bool]:
        """The running call, or a new one and True."""
        with self._lock:
            running, new = self._running, self._running is None
            if running is None:
                running = self._running = Future()
        return running, new

    def _run(self, future: Future[T]) -> None:
        try:
            result = self._work()
            self._newest = time.monotonic(), result
            future.set_result(result)
        except BaseException as error:
            future.set_exception(error)
        finally:
            with self._lock:
                self._running = None


def _verdict(found: dict[str, Any]) -> Response:
    return Response.json(found, HTTPStatus.OK if found["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE)


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
                    if metric.kind is FigureKind.HISTOGRAM
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
        return _verdict(health(self._status.soon()))


class ApplicationTelemetry:
    """The metrics of one application; ``read_batches`` adds the reports of batches that are not counted yet."""

    def __init__(self, status: Callable[[], ApplicationStatus], read_batches: Callable[[BatchTimes], None]) -> None:
        self._status = SharedCall(status)
        self._read_batches = read_batches
        self._batches = BatchTimes()
        self._lock = threading.Lock()
        self._gather = SharedCall(self._gathered)

    def _gathered(self) -> ApplicationFacts:
        status = self._status()
        with self._lock:
            self._read_batches(self._batches)
        return ApplicationFacts(status, self._batches)

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The values of all metrics by name, as JSON-ready values."""
        return values(self._gather(), APPLICATION_METRICS)

    def routes(self) -> Routes:
        """``/metrics`` and ``/healthz``."""
        return {
            "/metrics": Route(lambda request: metrics_page(self._gather, APPLICATION_METRICS, "application")),
            # Probes present no token, and the answer names nothing of the application.
            "/healthz": Route(lambda request: self._health_page(), open=True),
        }

    def _health_page(self) -> Response:
        status = self._status.soon()
        reasons = ["driver-slow"] if status is None else [one.code for one in status.causes if not one.healthy]
        return _verdict({"healthy": not reasons, "reasons": reasons})
