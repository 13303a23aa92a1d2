"""The table of routes: for each path the function that makes the response, and whether a request needs the token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wallaroo_spark.web.server.requests import Request
from wallaroo_spark.web.server.responses import Response


@dataclass(frozen=True)
class Route:
    """The response of one path."""

    answer: Callable[[Request], Response] | Response
    """The function that makes the response, called in a thread of the server; or a response that never changes."""
    open: bool = False
    """Whether the response needs no token, because it shows nothing of the receiver. A wrong host is refused anyway."""


Routes = Mapping[str, Route]
"""Paths, each with its route: ``{"/healthz": Route(health, open=True)}``."""
