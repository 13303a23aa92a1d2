"""The pages of drivers: the status page and the run report of a receiver, and the page of an application.

A monitor takes snapshots in a thread of its own: often while a browser shows the page, and seldom otherwise. Browsers
read the newest snapshot, so the cost for the workers does not grow with the number of browsers.
Source: ``docs/status-page.md``, ``docs/pipelines/see.md#the-page``.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.observe.application import ApplicationStatus
from wallaroo_spark.observe.causes import application_health
from wallaroo_spark.observe.faces.metrics import APPLICATION_METRICS
from wallaroo_spark.observe.faces.page import APPLICATION, RECEIVER, application_document, document, static_routes
from wallaroo_spark.observe.faces.report import report_html
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.observe.record import ApplicationRecord, KeptRecord, RunRecord
from wallaroo_spark.observe.server.endpoints import Telemetry
from wallaroo_spark.observe.server.messages import Request, Response, Route, Routes
from wallaroo_spark.observe.server.page_server import PageAddress, PageServer
from wallaroo_spark.options import Options

log = one_line("wallaroo_spark.observe")

WATCHED_SECONDS = 1.0
"""Interval of the snapshots while a browser shows the page."""
UNWATCHED_SECONDS = 5.0
"""Interval while no browser shows the page; these snapshots are for the run report and the page's history."""
WATCHING_SECONDS = 15.0
"""Seconds after its last request for which a browser counts as watching. A choice: it sends one request a second."""
SHARE = 10
"""An interval is at least this multiple of the time that the last snapshot took, so that snapshots take only a small
part of a large fleet's time."""
PATIENCE_SECONDS = 5.0
"""The least age from which a snapshot counts as old. A choice: a person watches a snapshot a second."""
FIRST_SECONDS = 5.0
"""How long a request waits for the first snapshot. A choice: less than a browser's patience."""
STOP_SECONDS = 5.0
"""How long a stop waits for a snapshot that is being taken. A choice that bounds a stop."""


R = TypeVar("R", bound=KeptRecord[Any])


class PageMonitor(Generic[R]):
    """Keeps the record of one run, from :meth:`start` to :meth:`stop`. Several threads may call its methods.

    ``sample`` takes one snapshot; ``name`` is the name for people, such as ``receiver orders``; ``document`` makes the
    JSON that the page shows from ``record``.
    """

    def __init__(
        self, sample: Callable[[], Any], name: str, record: R, document: Callable[..., dict[str, Any]]
    ) -> None:
        self._sample = sample
        self._name = name
        self._record = record
        self._document = document
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._first = threading.Event()
        self._stopping = False
        self._asked_at = float("-inf")
        self._taken_at = float("-inf")
        self._interval = WATCHED_SECONDS
        self._failing = False
        self._thread = threading.Thread(
            target=self._run, name=f"wallaroo-{name.replace(' ', '-')}-monitor", daemon=True
        )

    def start(self) -> None:
        """Begin to take snapshots."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more snapshots. The record stays. May be called again."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_SECONDS)

    def read(self, reader: Callable[[R], str]) -> str:
        """Call ``reader`` with the record while no snapshot is added, and return its text."""
        with self._lock:
            return reader(self._record)

    def look(self) -> None:
        """Take a snapshot now, in the caller's thread. Raises nothing."""
        begun = time.monotonic()
        try:
            status = self._sample()
        except Exception as error:
            # The page then shows that its figures are old.
            if not self._failing:
                log.warning("%s: the status page has no new figures: %s", self._name, error)
            self._failing = True
        else:
            self._failing = False
            with self._lock:
                self._record.add(status)
                self._taken_at = time.monotonic()
            self._first.set()
        finally:
            watched = begun - self._asked_at < WATCHING_SECONDS
            least = WATCHED_SECONDS if watched else UNWATCHED_SECONDS
            self._interval = max(least, SHARE * (time.monotonic() - begun))

    def answer(self, request: Request) -> Response:
        """The response of the JSON that the page shows."""
        now = time.monotonic()
        unwatched, self._asked_at = now - self._asked_at > WATCHING_SECONDS, now
        if unwatched:
            self._wake.set()
        if not self._first.wait(FIRST_SECONDS):
            return Response.text("there is no snapshot yet; ask again", HTTPStatus.SERVICE_UNAVAILABLE)
        with self._lock:
            age = time.monotonic() - self._taken_at
            patience = max(PATIENCE_SECONDS, 2 * self._interval)
            shown = self._document(self._record, age=age, patience=patience, query=request.query)
        return Response.json(shown)

    def _run(self) -> None:
        while not self._stopping:
            self.look()
            self._wake.wait(self._interval)
            self._wake.clear()


class Monitor(PageMonitor[RunRecord]):
    """The monitor of a receiver."""

    def __init__(self, sample: Callable[[], ReceiverStatus], name: str) -> None:
        """``sample`` takes one snapshot; ``name`` is the receiver's name."""
        super().__init__(sample, f"receiver {name}", RunRecord(), document)

    def settle(self) -> None:
        """Count the rows that were committed since the last snapshot, and keep nothing else. Raises nothing.

        It is called while the receiver stops, when its state no longer has a meaningful cause.
        """
        try:
            status = self._sample()
        except Exception as error:
            log.debug("%s: no last figures: %s", self._name, error)
            return
        with self._lock:
            self._record.count(status)


ROWS_IN_ALL = 2000
"""Instances, and streams, that the workers together tell the page of. A choice: it bounds the driver's memory."""
LEAST_ROWS = 5
"""The fewest that each worker tells of, also when there are very many workers."""
LAST_LOOK_SECONDS = 2.0
"""How long the workers get to answer at a stop. A choice that bounds a stop."""

_PROGRAMS = ("wallaroo-spark", "pyspark", "pyarrow", "pandas", "redis")


def rows_of_each(workers: int) -> int:
    """How many instances, and streams, each worker tells the page of."""
    return max(LEAST_ROWS, ROWS_IN_ALL // workers)


def page_routes(monitor: PageMonitor[Any], page: str = RECEIVER) -> Routes:
    """The routes of the page and of its figures."""
    return {**static_routes(page), "/api/status": Route(monitor.answer)}


def start_page(place: PageAddress | None, name: str, routes: Routes, *, required: bool) -> PageServer | None:
    """Start the server of the page at ``place``; None without a place. ``name`` is such as ``receiver orders``.

    Raises :class:`ConfigurationError` when a ``required`` address cannot be used. A default address is not worth ending
    a receiver or an application, so in that case there is a warning and no page.
    """
    if place is None:
        return None
    page = PageServer(place, routes, name)
    try:
        page.start()
    except ConfigurationError as error:
        if required:
            raise
        log.warning("%s has no status page: %s", name, error)
        return None
    return page


def start_receiver_page(place: PageAddress | None, options: Options, routes: Routes) -> PageServer | None:
    """As :func:`start_page`; an address that the option ``statusPage`` gives is required."""
    name = f"receiver {options.receiver}"
    page = start_page(place, name, routes, required=options.status_page != Options().status_page)
    if page is not None and not log.hasHandlers():
        # A program without logging, such as a notebook, has to learn the address, too; Python drops its log line.
        print(f"{name}: the status page is {page.address}", file=sys.stderr, flush=True)
    return page


def check_report(path: str) -> None:
    """Refuse a path at which no report can be written; empty: there is none.

    Raises :class:`ConfigurationError` with the folder and the remedy.
    """
    folder = Path(path).absolute().parent
    if path and (Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK)):
        raise ConfigurationError(
            f"option report: {path} cannot be written; name a file in a folder that exists and that the driver may "
            "write to",
            code="file-unwritable",
            option="report",
        )


def write_report(path: str, monitor: Monitor, options: Options) -> None:
    """Write the report of a run to a file, which is complete or not there at any moment.

    Raises :class:`ConfigurationError` when it cannot be written.
    """
    versions = {"Python": platform.python_version(), "system": platform.platform()}
    for name in _PROGRAMS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    given = options.to_texts(secrets=False)
    text = monitor.read(lambda record: report_html(record, options=given, versions=versions))
    file = Path(path).absolute()
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, prefix=f".{file.name}.", delete=False
        ) as written:
            written.write(text)
        os.replace(written.name, file)
    except OSError as error:
        raise ConfigurationError(
            f"the report {path} cannot be written: {error.strerror}; use another path", code="file-unwritable"
        ) from error


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
        self._who, self._place, self._status, self._required = f"application {name}", place, status, required
        self._telemetry = Telemetry(APPLICATION_METRICS, status, query, application_health)
        self._server: PageServer | None = None
        self._ends = contextlib.ExitStack()

    @property
    def address(self) -> str:
        """The URL of the page; empty when it is not served."""
        return self._server.address if self._server is not None else ""

    def metrics(self) -> dict[str, list[dict[str, Any]]]:
        """The values of all metrics by name, as JSON-ready values."""
        return self._telemetry.metrics()

    def start(self) -> None:
        """Serve. Raises :class:`ConfigurationError` when a required address cannot be used."""
        monitor = PageMonitor(self._status, self._who, ApplicationRecord(), application_document)
        routes = {**page_routes(monitor, APPLICATION), **self._telemetry.routes()}
        self._server = start_page(self._place, self._who, routes, required=self._required)
        if self._server is not None:
            monitor.start()
            self._ends.callback(monitor.stop)
            self._ends.callback(self._server.stop)

    def stop(self) -> None:
        """End the server and its thread. May be called again."""
        self._ends.close()
        self._server = None
