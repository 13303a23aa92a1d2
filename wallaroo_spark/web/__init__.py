"""The driver's HTTP server: the status page and everything else that a receiver shows over HTTP."""

from wallaroo_spark.web.monitor import Monitor, PageMonitor
from wallaroo_spark.web.server.page_server import PageServer
from wallaroo_spark.web.server.place import PageAddress
from wallaroo_spark.web.server.requests import Request
from wallaroo_spark.web.server.responses import Response
from wallaroo_spark.web.server.routes import Route, Routes

__all__ = ["Monitor", "PageAddress", "PageMonitor", "PageServer", "Request", "Response", "Route", "Routes"]
