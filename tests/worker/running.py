"""A worker that really runs: a thread, a real Redis, real sockets, and the driver's client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import SECONDS, eventually
from wallaroo_spark.inner.client import Trust, WorkerClient
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.registry import Lease, Registry
from wallaroo_spark.sidecar.given_up import GivenUpRanges
from wallaroo_spark.testing.fake_worker import DriverByHand
from wallaroo_spark.transport import parse_address
from wallaroo_spark.worker.run import WorkerThread
from wallaroo_spark.worker.service import WorkerSetup

# Both are unlike anything that a message says, so that a search for them finds nothing else.
TOKEN = "t0ken-of-the-fl33t"
COOKIE = "c00kie-of-the-fl33t"

_numbers = itertools.count()


class Running:
    """A worker that serves its slot."""

    def __init__(self, thread: WorkerThread, lease: Lease, registry: Registry, trust: Trust | None = None) -> None:
        self.thread = thread
        self.lease = lease
        self.registry = registry
        self.client = WorkerClient(lease.flight, TOKEN, trust=trust)
        self.driver = DriverByHand(WorkerClient(lease.flight, TOKEN, trust=trust), GivenUpRanges())
        self.epoch = 0
        self.batch = -1

    @property
    def address(self) -> tuple[str, int]:
        """Where connectors find it."""
        return parse_address(self.lease.connect)

    def rewind(self, references: dict[str, dict[str, Any]] | None = None) -> None:
        """A query starts from these references."""
        self.epoch += 1
        self.driver.rewind(self.epoch, self.batch, references or {})

    def commit(self, references: dict[str, dict[str, Any]]) -> None:
        """Spark has committed a batch."""
        self.batch += 1
        self.driver.committed(self.epoch, self.batch, references)

    def rows(self, scope: str, stream_id: int, start: Any, end: Any, wait: float = SECONDS) -> list[dict[str, Any]]:
        """The rows of a planned range, which must be there or come in time."""
        found, done = [], False
        for batch, marks in self.client.read(
            [PlannedRange(StreamKey(scope, stream_id), start, end)], boundaries=True, wait=wait
        ):
            found.extend(batch.to_pylist())
            done = done or any(final for _, _, final in marks)
        assert done, "the range is not there"
        return found

    def count(self, name: str) -> int:
        """One of the worker's counts."""
        counts: dict[str, int] = self.client.status()["counts"]
        return counts.get(name, 0)

    def ended(self) -> None:
        """Wait for the worker to end of itself."""
        assert not self.thread.alive(SECONDS), "the worker goes on"


class Fleet:
    """The workers of one receiver, each in a thread; ``url`` is the Redis they share."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.receiver = f"fleet-{next(_numbers)}"
        self.registry = Registry(url, self.receiver, lease_seconds=60.0, attempts=2)
        self.options = {
            "receiver": self.receiver,
            "registry": url,
            "host": "127.0.0.1",
            "workers": 1,
            "cookie": COOKIE,
            "lease_seconds": 30.0,
            **options,
        }
        self._open: list[Any] = []

    def thread(self, slot: int = 0, submission: int = 1, **options: Any) -> WorkerThread:
        """A worker that has been started and may not serve yet."""
        settings = Options(**{**self.options, **options})
        registry = Registry(self.url, self.receiver, lease_seconds=settings.lease_seconds, attempts=2)
        thread = WorkerThread(WorkerSetup(settings, slot, submission, TOKEN), registry)
        thread.__enter__()
        self._open.append(thread)
        return thread

    def serving(self, thread: WorkerThread, slot: int = 0, submission: int = 1, but: Lease | None = None) -> Running:
        """Wait until a worker serves its slot."""

        def found() -> Lease | None:
            assert thread.alive(0), "the worker has ended"
            lease = self.registry.leases().get(slot)
            if lease is None or not lease.flight or lease.submission != submission:
                return None
            return lease if but is None or lease.generation > but.generation else None

        lease = eventually(found, f"slot {slot} is served")
        return Running(thread, lease, self.registry, Trust.of(Options(**self.options)))

    def start(self, slot: int = 0, submission: int = 1, ready: bool = True, **options: Any) -> Running:
        """A worker that serves its slot and knows where the query stands."""
        running = self.serving(self.thread(slot, submission, **options), slot, submission)
        if ready:
            running.rewind()
        return running

    def close(self) -> None:
        """End all workers."""
        for thread in self._open:
            thread.__exit__(None, None, None)
        self.registry.close()


@contextmanager
def fleet(url: str, **options: Any) -> Iterator[Fleet]:
    """A fleet that ends with the block."""
    made = Fleet(url, **options)
    try:
        yield made
    finally:
        made.close()
