"""The function that a fleet job runs: a worker inside ``mapInPandas``, for as long as the receiver wants it.

It runs in an executor's Python process, on one partition of one row. Source: ``design.md``, The picture (Fleet).
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from types import TracebackType

import pandas as pd
import pyarrow as pa

from wallaroo_spark.worker.leasing import Registry
from wallaroo_spark.worker.memory import keep_memory
from wallaroo_spark.worker.service import WorkerService, WorkerSetup

HEARTBEAT_SECONDS = 1.0
"""Spark may take a silent Python task for idle, so an empty frame leaves this often."""
HEARTBEAT_DDL = "slot int"


class WorkerThread:
    """A :class:`WorkerService` on an event loop in a thread of its own."""

    def __init__(self, setup: WorkerSetup, registry: Registry) -> None:
        holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
        self._service = WorkerService(setup, registry, holder)
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wallaroo-worker-{setup.slot}", daemon=True)

    def __enter__(self) -> WorkerThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._service.stop_from_outside("the worker's task was ended")
        self._done.wait(10.0)

    def alive(self, seconds: float) -> bool:
        """Wait so long for the worker to end; whether it goes on. Raises what it ended with."""
        self._done.wait(seconds)
        if self._error is not None:
            raise self._error
        return not self._done.is_set()

    def _run(self) -> None:
        try:
            asyncio.run(self._service.run())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()


def run_worker(setup: WorkerSetup, registry: Registry, rows: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Serve the slot, yielding empty frames as heartbeats; ends when the worker does."""
    for _ in rows:
        # The partition's one row only places the task; all that matters is in the setup.
        pass
    keep_memory()
    heartbeat = pd.DataFrame({"slot": pd.Series([], dtype=pd.ArrowDtype(pa.int32()))})
    with WorkerThread(setup, registry) as worker:
        while worker.alive(HEARTBEAT_SECONDS):
            yield heartbeat
