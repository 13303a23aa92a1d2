"""The status page of a receiver: its routes, and its start in the driver. Source: ``docs/status-page.md``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.options import Options
from wallaroo_spark.web import PageServer, Place, Response, Route, Routes

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

Status = Callable[[], dict[str, Any]]
"""The receiver's status at the moment of the call."""


def routes(status: Status) -> Routes:
    """The table of routes of a receiver."""
    return {
        "/": Route(Response.text("the status page"), open=True),
        "/api/status": Route(lambda request: Response.json(status())),
    }


def start_page(place: Place | None, options: Options, status: Status) -> PageServer | None:
    """Start the server of the page at ``place``; None without a place.

    Raises :class:`ConfigurationError` when the address cannot be used and the option ``statusPage`` gives it. The
    default address is not worth ending a receiver, so in that case there is a warning and no page.
    """
    if place is None:
        return None
    page = PageServer(place, routes(status), options.receiver)
    try:
        page.start()
    except ConfigurationError as error:
        if options.status_page != Options().status_page:
            raise
        log.warning("receiver %s has no status page: %s", options.receiver, error)
        return None
    return page
