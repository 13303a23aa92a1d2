"""The page's own files, which are part of the package: no build step, and nothing from other servers."""

from __future__ import annotations

from importlib import resources

from wallaroo_spark.web.server.responses import CSS, HTML, JAVASCRIPT, SVG, Response
from wallaroo_spark.web.server.routes import Route

RECEIVER = "page"
APPLICATION = "application"
_FILES = {
    "/page.css": ("page.css", CSS),
    "/common.js": ("common.js", JAVASCRIPT),
    "/favicon.svg": ("favicon.svg", SVG),
}


def static_routes(page: str = RECEIVER) -> dict[str, Route]:
    """The routes of a page itself. They show nothing of a receiver or an application, so they need no token."""
    folder = resources.files("wallaroo_spark.web") / "static"
    files = {**_FILES, "/": (f"{page}.html", HTML), f"/{page}.js": (f"{page}.js", JAVASCRIPT)}
    return {
        path: Route(Response(kind, (folder / name).read_bytes()), open=True) for path, (name, kind) in files.items()
    }
