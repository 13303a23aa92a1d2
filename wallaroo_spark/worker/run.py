"""The function that a fleet job runs: a worker inside ``mapInPandas``, for as long as the receiver runs.

It runs in an executor's Python process, on one partition of one row. Source: ``docs/architecture.md#the-fleet``.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator

import pandas as pd

from wallaroo_spark.inner.trust import fleet_keys
from wallaroo_spark.slots.service import ServiceThread, serve
from wallaroo_spark.worker.memory import keep_memory
from wallaroo_spark.worker.service import WorkerService, WorkerSetup
from wallaroo_spark.worker.slot_tenancy import SlotRegistry


class WorkerThread(ServiceThread):
    """A :class:`WorkerService` on an event loop in a thread of its own."""

    def __init__(self, setup: WorkerSetup, registry: SlotRegistry) -> None:
        holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        super().__init__(WorkerService(setup, registry, holder), f"wallaroo-worker-{setup.slot}")


def run_worker(setup: WorkerSetup, registry: SlotRegistry, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Serve the slot, yielding empty frames as heartbeats; ends when the worker does."""
    if setup.keys is None:
        # Deriving them takes 16 MiB once, which would be kept for as long as the worker lives.
        fleet_keys(setup.token)
    keep_memory()
    yield from serve(WorkerThread(setup, registry), rows)
