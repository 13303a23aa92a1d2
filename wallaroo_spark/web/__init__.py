"""The driver's HTTP server: the status page and everything else that a receiver shows over HTTP."""

from wallaroo_spark.web.monitor import Monitor
from wallaroo_spark.web.server.page_server import PageServer
from wallaroo_spark.web.server.place import Place
from wallaroo_spark.web.server.requests import Request
from wallaroo_spark.web.server.responses import Response
from wallaroo_spark.web.server.routes import Route, Routes

__all__ = ["Monitor", "PageServer", "Place", "Request", "Response", "Route", "Routes"]
