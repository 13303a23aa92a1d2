"""``/metrics`` and ``/healthz`` of an application, collected once for all requests that arrive at the same time.

Source: ``docs/pipelines/see.md#where-the-figures-come-from``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from wallaroo_spark.status.application.model import ApplicationStatus
from wallaroo_spark.telemetry.application.table import APPLICATION_METRICS, ApplicationFacts
from wallaroo_spark.telemetry.batches import BatchTimes
from wallaroo_spark.telemetry.endpoint import metrics_page, values
from wallaroo_spark.telemetry.shared_call import SharedCall
from wallaroo_spark.web import Response, Route, Routes


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
        cause = self._status().cause
        answer = {"healthy": cause.healthy, "reasons": [] if cause.healthy else [cause.code]}
        return Response.json(answer, HTTPStatus.OK if cause.healthy else HTTPStatus.SERVICE_UNAVAILABLE)
