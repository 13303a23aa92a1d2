"""The workers of a receiver: one Spark job for each slot, submitted again whenever it ends while the receiver runs.

Source: ``docs/architecture.md#the-fleet``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wallaroo_spark.registry import Registry
from wallaroo_spark.slots.long_jobs import LongJobs, Work
from wallaroo_spark.telemetry.logs import LogSettings, least_level, log_to_stderr, secrets_of
from wallaroo_spark.worker.service import WorkerSetup

if TYPE_CHECKING:
    import pandas as pd


def serve_slot(setup: WorkerSetup) -> Work:
    """Return the function that mapInPandas runs in an executor to serve one slot.

    Spark pickles the function, so it imports its modules on the executor.
    """

    def serve(rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from wallaroo_spark.worker.run import run_worker

        options = setup.options
        secrets = secrets_of(options.registry, options.cookie, setup.token)
        log_to_stderr(
            LogSettings(options.receiver, least_level(options.log_level, ""), options.log_format, secrets), setup.slot
        )
        registry = Registry(options.registry, options.receiver, lease_seconds=options.lease_seconds)
        try:
            yield from run_worker(setup, registry, rows)
        finally:
            registry.close()

    return serve


class Fleet(LongJobs):
    """The jobs of all slots of a receiver, each watched by a thread. ``setup`` is the setup that every worker gets."""

    def __init__(self, spark: Any, registry: Registry, setup: WorkerSetup) -> None:
        options = setup.options

        def work(slot: int, submission: int) -> Work:
            return serve_slot(dataclasses.replace(setup, slot=slot, submission=submission))

        name, description = f"wallaroo-{options.receiver}", f"worker {{number}} of {options.receiver}"
        super().__init__(
            spark, options.workers, name, description, registry.next_submission, work, options.lease_seconds
        )
