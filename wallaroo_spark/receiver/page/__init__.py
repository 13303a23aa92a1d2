"""The status page and the run report of a receiver. Source: ``docs/status-page.md``."""

from __future__ import annotations

import logging
import os
import platform
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.web import Monitor, PageAddress, PageServer, Route, Routes
from wallaroo_spark.web.report.html import report_html
from wallaroo_spark.web.static_files import static_routes

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

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


def page_routes(monitor: Monitor) -> Routes:
    """The routes of the page and of its figures."""
    return {**static_routes(), "/api/status": Route(monitor.answer)}


def start_page(place: PageAddress | None, options: Options, routes: Routes) -> PageServer | None:
    """Start the server of the page at ``place``; None without a place.

    Raises :class:`ConfigurationError` when the address cannot be used and the option ``statusPage`` gives it. The
    default address is not worth ending a receiver, so in that case there is a warning and no page.
    """
    if place is None:
        return None
    page = PageServer(place, routes, f"receiver {options.receiver}")
    try:
        page.start()
    except ConfigurationError as error:
        if options.status_page != Options().status_page:
            raise
        log.warning("receiver %s has no status page: %s", options.receiver, error)
        return None
    if not log.hasHandlers():
        # A program without logging, such as a notebook, has to learn the address, too; Python drops its log line.
        print(f"receiver {options.receiver}: the status page is {page.address}", file=sys.stderr, flush=True)
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
