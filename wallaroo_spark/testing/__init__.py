"""Tools for tests of programs that use this package: rows, receivers, workers and applications controlled by the test.

:func:`rows` makes the DataFrame that a receiver's stream would have, :class:`LocalReceiver` runs a query on messages
that a test sends, and :class:`FakeWorker` is a real worker for connectors, without Spark and Redis. For durable streams
and pipelines, :class:`FakeApplication` is a real gateway without Spark, and :func:`run_function` calls a function of a
stage. The pytest fixtures are in :mod:`wallaroo_spark.testing.plugin`; no other module here needs pytest. Names are
imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wallaroo_spark.lazy_names import lazy_names

if TYPE_CHECKING:
    from wallaroo_spark.testing.fake_application import FakeApplication, PipelineInstance
    from wallaroo_spark.testing.fake_worker import FakeWorker, rows, rows_schema
    from wallaroo_spark.testing.function_runs import FunctionResult, run_function
    from wallaroo_spark.testing.local import LocalReceiver
    from wallaroo_spark.wiretap.proxy import Proxy, Trouble

__all__ = [
    "FakeApplication",
    "FakeWorker",
    "FunctionResult",
    "LocalReceiver",
    "PipelineInstance",
    "Proxy",
    "Trouble",
    "rows",
    "rows_schema",
    "run_function",
]

_HOMES = {
    "wallaroo_spark.testing.fake_application": ("FakeApplication", "PipelineInstance"),
    "wallaroo_spark.testing.fake_worker": ("FakeWorker", "rows", "rows_schema"),
    "wallaroo_spark.testing.function_runs": ("FunctionResult", "run_function"),
    "wallaroo_spark.testing.local": ("LocalReceiver",),
    "wallaroo_spark.wiretap.proxy": ("Proxy", "Trouble"),
}

_NEEDS = {
    **dict.fromkeys(("FakeApplication", "PipelineInstance"), ("pipelines", "cli")),
    **dict.fromkeys(("FunctionResult", "run_function"), ("pipelines",)),
    **dict.fromkeys(("LocalReceiver", "rows"), ("spark", "embedded")),
    **dict.fromkeys(("FakeWorker", "rows_schema"), ("worker",)),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, _NEEDS)
