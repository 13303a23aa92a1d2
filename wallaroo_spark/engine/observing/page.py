"""The HTTP server of an application's driver: its page, its metrics and its health.

Source: ``docs/pipelines/see.md#the-page``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.receiver.batch_reports import read_batches
from wallaroo_spark.status.application.model import ApplicationStatus
from wallaroo_spark.telemetry.application.endpoint import ApplicationTelemetry
from wallaroo_spark.telemetry.batches import BatchTimes
from wallaroo_spark.web import PageAddress, PageMonitor, PageServer, Route
from wallaroo_spark.web.application.record import ApplicationRecord
from wallaroo_spark.web.application.view import application_document
from wallaroo_spark.web.static_files import APPLICATION, static_routes

log = one_line(logging.getLogger("wallaroo_spark.engine"))

SETTINGS = ("status_page", "status_page_token")
"""The names of the settings of the page, for its errors."""


class ApplicationPage:
    """The page and the metrics of one application; ``place`` is None for metrics without a server.

    ``status`` takes a snapshot, ``query`` gives Spark's query. A default address that is taken is a warning, because it
    is not worth ending an application; ``required``: it is an error.
    """

    def __init__(
        self,
        name: str,
        place: PageAddress | None,
        status: Callable[[], ApplicationStatus],
        query: Callable[[], Any],
        *,
        required: bool,
    ) -> None:
        self._name, self._place, self._required = name, place, required
        self._query = query
        self._telemetry = ApplicationTelemetry(status, self._read_batches)
        self._status = status
        self._monitor: PageMonitor[ApplicationRecord] | None = None
        self._server: PageServer | None = None

    @property
    def address(self) -> str:
        """The URL of the page; empty when it is not served."""
        return self._server.address if self._server is not None else ""

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The values of all metrics by name, as JSON-ready values."""
        return self._telemetry.metrics()

    def start(self) -> None:
        """Serve. Raises :class:`ConfigurationError` when a required address cannot be used."""
        if self._place is None:
            return
        who = f"application {self._name}"
        monitor = PageMonitor(self._status, who, ApplicationRecord(), application_document)
        routes = {
            **static_routes(APPLICATION),
            "/api/status": Route(monitor.answer),
            **self._telemetry.routes(),
        }
        server = PageServer(self._place, routes, who)
        try:
            server.start()
        except ConfigurationError as error:
            if self._required:
                raise
            log.warning("application %s has no page: %s", self._name, error)
            return
        self._server, self._monitor = server, monitor
        monitor.start()

    def stop(self) -> None:
        """End the server and its thread. May be called again."""
        server, self._server = self._server, None
        monitor, self._monitor = self._monitor, None
        if server is not None:
            server.stop()
        if monitor is not None:
            monitor.stop()

    def _read_batches(self, times: BatchTimes) -> None:
        query = self._query()
        if query is not None:
            # A query that ends meanwhile, or a lost connection to Spark: its reports stay as they are counted.
            try:
                read_batches(query, times)
            except Exception as error:
                log.debug("application %s: the reports of batches are not read: %s", self._name, error)
