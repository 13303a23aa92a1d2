"""The proxy that connections of these tests go through."""

from wallaroo_spark.testing.proxy import Proxy, Trouble

__all__ = ["Proxy", "Trouble"]
