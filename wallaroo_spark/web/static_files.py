"""The page's own files, which are part of the package: no build step, and nothing from other servers."""

from __future__ import annotations

from importlib import resources

from wallaroo_spark.web.server.responses import CSS, HTML, JAVASCRIPT, SVG, Response
from wallaroo_spark.web.server.routes import Route

_FILES = {
    "/": ("page.html", HTML),
    "/page.css": ("page.css", CSS),
    "/page.js": ("page.js", JAVASCRIPT),
    "/favicon.svg": ("favicon.svg", SVG),
}


def static_routes() -> dict[str, Route]:
    """The routes of the page itself. They show nothing of a receiver, so they need no token."""
    folder = resources.files("wallaroo_spark.web") / "static"
    return {
        path: Route(Response(kind, (folder / name).read_bytes()), open=True) for path, (name, kind) in _FILES.items()
    }
