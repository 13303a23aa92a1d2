"""Real workers on a real Redis, without Spark: each is the thread that would run in an executor, or a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from tests.waiting import eventually
from wallaroo_spark.connector import Backoff, BlockingConnector
from wallaroo_spark.inner.client import WorkerClient, status_token
from wallaroo_spark.options import Options
from wallaroo_spark.references import Changes, References
from wallaroo_spark.registry import Lease, Registry
from wallaroo_spark.testing.fake_worker import DriverByHand
from wallaroo_spark.worker.run import WorkerThread
from wallaroo_spark.worker.service import WorkerSetup

TOKEN = "fleet-token"
COOKIE = "biscuit"


class LiveFleet:
    """Workers of one receiver. The test takes the place of the driver, with :meth:`begin`."""

    def __init__(self, url: str, receiver: str, **options: Any) -> None:
        settings = {"workers": 2, "lease_seconds": 30.0, "cookie": COOKIE, "host": "127.0.0.1", **options}
        self.options = Options(receiver=receiver, registry=url, **settings)
        self.registry = Registry(url, receiver, lease_seconds=self.options.lease_seconds)
        self._workers: dict[int, WorkerThread] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._drivers: dict[str, DriverByHand] = {}
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self.publish()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        for slot in [*self._workers]:
            self.stop(slot)
        for slot in [*self._processes]:
            self.kill(slot)
        self.registry.close()

    def publish(self) -> None:
        """The fleet's record."""
        self.registry.publish_fleet({"status_token": status_token(TOKEN), "workers": str(self.options.workers)})

    def start(self, slot: int, *, own_process: bool = False) -> Lease:
        """A worker for the slot, once it serves; its lease. In a process of its own it can be killed."""
        submission = self.registry.next_submission()
        if own_process:
            command = [sys.executable, "-m", "tests.source.worker_process", self.options.registry]
            arguments = [self.options.receiver, str(slot), str(submission)]
            self._processes[slot] = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE)
        else:
            registry = Registry(self.options.registry, self.options.receiver, lease_seconds=self.options.lease_seconds)
            self._open.callback(registry.close)
            worker = WorkerThread(WorkerSetup(self.options, slot, submission, TOKEN), registry)
            worker.__enter__()
            self._workers[slot] = worker

        def serving() -> bool:
            lease = self.registry.leases().get(slot)
            return lease is not None and lease.submission == submission and bool(lease.flight)

        eventually(serving)
        return self.registry.leases()[slot]

    def stop(self, slot: int) -> None:
        """End the slot's worker in good order."""
        self._workers.pop(slot).__exit__(None, None, None)

    def kill(self, slot: int) -> None:
        """End the slot's worker with SIGKILL."""
        process = self._processes.pop(slot)
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    @contextmanager
    def stopped(self, slot: int) -> Iterator[None]:
        """The slot's worker, in a process of its own, stands still for the block."""
        process = self._processes[slot]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def client(self, slot: int) -> WorkerClient:
        """The client with which the driver calls the slot's worker."""
        client = WorkerClient(self.registry.leases()[slot].flight, TOKEN)
        self._open.callback(client.close)
        return client

    def begin(self, references: References | None = None, epoch: int = 1, batch: int = -1) -> None:
        """Tell every worker where the query stands."""
        for lease in self.registry.leases().values():
            self._driver(lease).rewind(epoch, batch, references or {})

    def commit(self, slot: int, epoch: int, batch: int, changes: Changes) -> None:
        """Tell a worker that Spark has committed a batch."""
        self._driver(self.registry.leases()[slot]).committed(epoch, batch, changes)

    def _driver(self, lease: Lease) -> DriverByHand:
        if lease.flight not in self._drivers:
            driver = self._drivers[lease.flight] = DriverByHand(WorkerClient(lease.flight, TOKEN))
            self._open.callback(driver.stop)
        return self._drivers[lease.flight]

    def connect(self, instance: str, slot: int = 0) -> BlockingConnector:
        """A connector that is at home at this slot; new ones are shared out evenly, so take the slots in turn."""
        retry = Backoff(initial=0.05, maximum=0.3)
        settings: dict[str, Any] = {"cookie": COOKIE, "retry": retry, "registry": self.options.registry}
        assert self.registry.assign(instance, slot, self.options.workers).slot == slot
        connector = BlockingConnector(self.options.receiver, instance=instance, **settings)
        self._open.callback(connector.close)
        return connector

    def held(self, slot: int) -> int:
        """How many messages the slot's worker has taken in."""
        return int(self.client(slot).status()["counts"].get("messages", 0))
