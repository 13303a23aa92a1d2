"""One Spark job a slot, each run again whenever it ends, for as long as the receiver runs.

Source: ``docs/architecture.md#the-fleet``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wallaroo_spark.registry import Registry
from wallaroo_spark.slots.long_jobs import LongJobs, Work
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    import pandas as pd


def serve_slot(setup: WorkerSetup) -> Work:
    """The function that mapInPandas runs in an executor. It imports everything that it needs there."""

    def serve(rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from wallaroo_spark.worker.run import run_worker

        options = setup.options
        registry = Registry(options.registry, options.receiver, lease_seconds=options.lease_seconds)
        try:
            yield from run_worker(setup, registry, rows)
        finally:
            registry.close()

    return serve


class Fleet(LongJobs):
    """The jobs of all slots of a receiver, each watched by a thread."""

    def __init__(self, spark: Any, registry: Registry, setup: WorkerSetup) -> None:
        options = setup.options

        def work(slot: int, submission: int) -> Work:
            return serve_slot(dataclasses.replace(setup, slot=slot, submission=submission))

        name, what = f"wallaroo-{options.receiver}", f"worker {{number}} of {options.receiver}"
        super().__init__(spark, options.workers, name, what, registry.next_submission, work, options.lease_seconds)
