"""The driver's HTTP server: the status page and everything else that a receiver shows over HTTP."""

from wallaroo_spark.web.page_server import PageServer
from wallaroo_spark.web.place import Place
from wallaroo_spark.web.requests import Request
from wallaroo_spark.web.responses import Response
from wallaroo_spark.web.routes import Route, Routes

__all__ = ["PageServer", "Place", "Request", "Response", "Route", "Routes"]
