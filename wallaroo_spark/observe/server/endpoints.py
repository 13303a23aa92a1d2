"""The metrics and the health of a receiver or an application, collected once for all requests that arrive at the same
time.

Source: ``docs/monitoring.md``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from wallaroo_spark.errors import one_line
from wallaroo_spark.observe.causes import OLD_SECONDS, health
from wallaroo_spark.observe.faces import metrics as tables
from wallaroo_spark.observe.faces.metrics import METRICS, Facts, Metric, MetricTable, Sample
from wallaroo_spark.observe.figures import FigureKind
from wallaroo_spark.observe.query_facts import BatchTimes, read_batches
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.record import Aggregate
from wallaroo_spark.observe.server.messages import Response, Route, Routes

log = one_line("wallaroo_spark.observe")

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


S = TypeVar("S")


def values(facts: Facts[S], metrics: MetricTable[S]) -> dict[str, list[dict[str, Any]]]:
    """The values of all metrics by name, as JSON-ready values."""

    def number(metric: Metric[S], sample: Sample) -> dict[str, Any]:
        if metric.kind is not FigureKind.HISTOGRAM:
            return {"value": sample.value}
        buckets = {f"{bound:g}": count for bound, count in sample.buckets}
        return {"sum": sample.value, "count": sample.buckets[-1][1], "buckets": buckets}

    return {
        metric.name: [
            {"labels": dict(zip(metric.labels, sample.labels, strict=True)), **number(metric, sample)}
            for sample in metric.samples(facts)
        ]
        for metric in metrics
    }


class Telemetry(Generic[S]):
    """The metrics and the health of a receiver or an application, for as long as its object lives.

    ``status`` takes a snapshot, and ``query`` gives Spark's query, whose reports of batches are counted. Both are
    called once for all requests that arrive at the same time. ``health`` makes the verdict on a snapshot.
    """

    def __init__(
        self,
        metrics: MetricTable[S],
        status: Callable[[], S],
        query: Callable[[], Any],
        health: Callable[[S | None], dict[str, Any]],
    ) -> None:
        self._metrics = metrics
        self._status = SharedCall(status)
        self._query = query
        self._health = health
        self._batches = BatchTimes()
        self.facts = SharedCall(self._gathered)
        """Gathers everything that the metrics of this moment are made from."""

    def _gathered(self) -> Facts[S]:
        status, query = self._status(), self._query()
        if query is not None:
            # A query that ends meanwhile, or a lost connection to Spark: the next call reads the reports.
            try:
                read_batches(query, self._batches)
            except Exception as error:
                of = self._metrics
                log.debug("%s %s: the reports of batches are not read: %s", of.label, of.name(status), error)
        return self._facts(status)

    def _facts(self, status: S) -> Facts[S]:
        return Facts(status, self._batches)

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The values of all metrics by name, as JSON-ready values; see ``Receiver.metrics``."""
        return values(self.facts(), self._metrics)

    def routes(self) -> Routes:
        """``/metrics`` and ``/healthz``."""
        return {
            "/metrics": Route(lambda request: self._metrics_page()),
            # Probes of load balancers and Kubernetes present no token, and the answer names nothing of the receiver.
            "/healthz": Route(lambda request: self._health_page(), open=True),
        }

    def _metrics_page(self) -> Response:
        if not tables.available():
            return Response.text(tables.MISSING, HTTPStatus.NOT_IMPLEMENTED)
        return Response(tables.CONTENT_TYPE, tables.exposition(self.facts(), self._metrics))

    def _health_page(self) -> Response:
        found = self._health(self._status.soon())
        return Response.json(found, HTTPStatus.OK if found["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE)


class ReceiverTelemetry(Telemetry[ReceiverStatus]):
    """That of a receiver, with the counters of its workers.

    ``instances`` is the number of connector instances that have metrics of their own. The driver counts in
    :attr:`driver`.
    """

    def __init__(self, status: Callable[[], ReceiverStatus], query: Callable[[], Any], instances: int) -> None:
        super().__init__(METRICS, status, query, health)
        self.driver: Counter[str] = Counter()
        self._instances = instances
        self._aggregate = Aggregate()
        self._lock = threading.Lock()

    def observe(self, status: ReceiverStatus) -> None:
        """Add a snapshot that was taken for another purpose, so that a dying worker's last counts are not lost."""
        with self._lock:
            self._aggregate.add(status)

    def _facts(self, status: ReceiverStatus) -> Facts[ReceiverStatus]:
        with self._lock:
            self._aggregate.add(status)
            return Facts(status, self._batches, self._aggregate.counts(), Counter(self.driver), self._instances)
