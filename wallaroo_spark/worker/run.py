"""The function of a fleet job: a worker inside ``mapInPandas``, for as long as the receiver runs.

It runs in an executor's Python process, on one partition of one row. Source: ``docs/architecture.md#the-fleet``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from wallaroo_spark.inner.client import fleet_keys
from wallaroo_spark.runtime.service import ServiceThread, new_holder, serve
from wallaroo_spark.worker.memory import keep_memory
from wallaroo_spark.worker.service import WorkerService, WorkerSetup
from wallaroo_spark.worker.slot_tenancy import SlotRegistry


class WorkerThread(ServiceThread):
    """A :class:`WorkerService` on an event loop in a thread of its own."""

    def __init__(self, setup: WorkerSetup, registry: SlotRegistry) -> None:
        super().__init__(WorkerService(setup, registry, new_holder()), f"wallaroo-worker-{setup.slot}")


def run_worker(setup: WorkerSetup, registry: SlotRegistry, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Serve the slot. Yields empty frames as heartbeats, and ends with the worker."""
    if setup.keys is None:
        # Deriving the keys allocates 16 MiB, which the process would keep for its lifetime.
        fleet_keys(setup.token)
    keep_memory()
    yield from serve(WorkerThread(setup, registry), rows)
