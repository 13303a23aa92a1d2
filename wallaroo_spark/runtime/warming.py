"""Prepares Spark for a take-over: what a first worker and a first query take longest for is done while a standby waits.

The executors' Python processes import the modules of the tasks, and Java loads and compiles what a streaming query
needs. Source: ``docs/reliability.md#a-standby-driver``.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wallaroo_spark.errors import one_line
from wallaroo_spark.runtime.spark_checks import classic_context

log = one_line("wallaroo_spark.runtime")

AGAIN_SECONDS = 30.0
"""Pause between two imports in the executors. Spark ends a Python process that was idle for a minute."""
BATCH_SECONDS = 120.0
"""How long the first batch of the query may take. A choice: it only bounds a query that cannot run."""
_LOOK_SECONDS = 0.2


def keep_warm(spark: Any, tasks: int, modules: Sequence[str], over: threading.Event) -> None:
    """Prepare Spark again and again until ``over`` is set; ``tasks`` processes import ``modules``.

    Raises nothing: what cannot be prepared is done at the take-over. Does nothing for a client of Spark Connect.
    """
    if classic_context(spark) is None:
        return
    first = True
    while first or not over.wait(AGAIN_SECONDS):
        try:
            spark.range(0, tasks, 1, tasks).mapInPandas(_importing(modules), "id bigint").collect()
            if first:
                _run_batch(spark, over)
        except Exception as error:
            log.debug("a standby could not prepare Spark: %s", error)
        first = False


def _importing(modules: Sequence[str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        for module in modules:
            importlib.import_module(module)
        yield from batches

    return rows


def _run_batch(spark: Any, over: threading.Event) -> None:
    """Run a streaming query without a checkpoint of its own until it has committed a batch."""
    rows = spark.readStream.format("rate").load().mapInPandas(_importing(()), "timestamp timestamp, value bigint")
    query = rows.writeStream.format("noop").queryName("wallaroo standby").start()
    try:
        for _ in range(int(BATCH_SECONDS / _LOOK_SECONDS)):
            if not query.isActive or query.lastProgress is not None or over.wait(_LOOK_SECONDS):
                break
    finally:
        query.stop()
