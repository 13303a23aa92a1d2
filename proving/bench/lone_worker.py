"""A worker without Spark, in a process of its own, with a driver that commits all received rows at once.

``python -m proving.bench.lone_worker JSON`` prints its addresses and serves until its input ends.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.references import Reference, StreamKey, nest
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.runtime.python_tasks import rare_collections
from wallaroo_spark.testing.fake_worker import DriverByHand
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.run import WorkerThread
from wallaroo_spark.worker.service import WorkerService, WorkerSetup

READY_SECONDS = 30.0


@dataclass(frozen=True)
class Alone:
    """The parameters of the worker and of its driver."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options of the worker, by their names in Python."""
    batch_seconds: float = 0.5
    """Seconds between two commits."""
    profile: str = ""
    """A file for a profile of the worker; empty for none."""


class Query:
    """Plans, and has the driver commit, all received rows."""

    def __init__(self, service: WorkerService, driver: DriverByHand) -> None:
        self._service = service
        self._driver = driver
        self._references: dict[StreamKey, Reference] = {}
        self._batch = -1

    def commit(self) -> None:
        """Plan and commit one batch."""

        def ends(state: WorkerState) -> dict[StreamKey, Reference]:
            extents, _, _ = state.buffer.extents(state.buffer.with_rows(), self._references, None, None)
            return {key: extent.end for key, extent in extents.items()}

        found = self._service.call(self._service.on_loop(ends), READY_SECONDS)
        if found:
            self._batch += 1
            self._references.update(found)
            self._driver.committed(1, self._batch, nest(found))


def main() -> None:
    """Serve."""
    alone = Alone(**json.loads(sys.argv[1]))
    given: dict[str, Any] = {"receiver": "bench", "host": "127.0.0.1", "workers": 1, **alone.options}
    options = Options(**given)
    # The worker raises its own limit of open files.
    with EmbeddedRedis() as redis:
        registry = Registry(redis.url, "bench")
        thread = WorkerThread(WorkerSetup(options, 0, 1, "a token"), Registry(redis.url, "bench"))
        with rare_collections(), thread:
            service = thread._service
            assert isinstance(service, WorkerService)
            until = time.monotonic() + READY_SECONDS
            while not (leases := registry.leases()) or not leases[0].connect:
                assert thread.alive(0.02), "the worker has ended"
                assert time.monotonic() < until, "the worker does not serve"
            driver = DriverByHand(WorkerClient(leases[0].flight, "a token", trust=Trust.of(options)))
            driver.rewind(1, -1, {})
            query = Query(service, driver)
            print(json.dumps({"address": leases[0].connect}), flush=True)
            over = threading.Event()

            def end_with_input() -> None:
                sys.stdin.read()
                over.set()

            threading.Thread(target=end_with_input, daemon=True).start()
            while not over.wait(alone.batch_seconds):
                query.commit()


if __name__ == "__main__":
    main()
