"""What it costs to watch a receiver: one look at all workers, and one refresh of the status page, without Spark.

``python -m proving.bench.watching`` prints the table of ``docs/decisions/cost-of-a-look.md``. The workers are
those of the section ``fleet``: their states behind real inner ports, on one thread of a process beside the driver's.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from proving.bench.sections.fleet import ACTIVE, FIRST, PATIENCE_SECONDS, REVISION, TOKEN, BareWorker
from wallaroo_spark.inner.client import WorkerClient
from wallaroo_spark.observe.collect import Collector, DriverReport, Question, ReceiverFacts
from wallaroo_spark.observe.receiver import QueryStatus, ReceiverStatus
from wallaroo_spark.observe.server.driver_pages import Monitor, rows_of_each
from wallaroo_spark.observe.server.messages import Request
from wallaroo_spark.protocol import Message, Notify
from wallaroo_spark.registry import Lease
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.state import WorkerState

T = TypeVar("T")
LOOKS = 10
PIECE = 1_000
"""Streams that are opened, and filled, by one event."""


class Case(NamedTuple):
    """A receiver."""

    slots: int
    """Number of its slots."""
    known: int
    """Streams that each worker knows."""
    held: int
    """Streams of which each worker holds a row."""


CASES = (
    Case(1, 100_000, 100),
    Case(1, 100_000, 10_000),
    Case(64, 1_000, 100),
)


class WatchedWorker(BareWorker):
    """A worker that measures the time that its thread spends on questions."""

    spent = 0.0
    """Processor time of that thread for all questions, in seconds."""

    async def on_loop(self, work: Callable[[WorkerState], T]) -> T:
        """Ask the state."""
        cpu = time.thread_time()
        try:
            return work(self.state)
        finally:
            WatchedWorker.spent += time.thread_time() - cpu

    def hold(self, count: int) -> None:
        """A row comes in each of so many streams."""

        async def receive(first: int) -> None:
            places = range(first, min(first + PIECE, count))
            notes = (REVISION.encode(Notify(FIRST + at, f"stream {at}")) for at in places if at >= ACTIVE)
            # The ids are above all committed references of the known streams.
            rows = (REVISION.encode(Message(FIRST + at, 1 << 40, b"x" * 100)) for at in places)
            self._handle(e.Received(((1, b"".join((*notes, *rows))),), 1))

        for first in range(0, count, PIECE):
            self.call(receive(first), PATIENCE_SECONDS)


def serve(case: Case, pipe: Any) -> None:
    """The workers' process: tells their leases, then the cost of the questions so far whenever it is asked."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="bench-workers", daemon=True).start()
    workers = [WatchedWorker(slot, loop) for slot in range(case.slots)]
    for worker in workers:
        worker.begin(case.known)
        worker.hold(case.held)
    pipe.send([worker.lease for worker in workers])
    while pipe.recv():
        pipe.send((WatchedWorker.spent, time.process_time()))
        WatchedWorker.spent = 0.0
    for worker in workers:
        worker.port.shutdown()


@contextmanager
def running(case: Case) -> Iterator[tuple[list[Lease], Callable[[], tuple[float, float]]]]:
    """The workers of a case.

    The function returns the processor time of their threads for questions since it was called before, and that of the
    whole process since its start.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(case, theirs), name="bench-watched", daemon=True)
    process.start()

    def told() -> Any:
        if not ours.poll(PATIENCE_SECONDS):
            raise RuntimeError(f"the workers say nothing for {PATIENCE_SECONDS:g} s")
        return ours.recv()

    def cost() -> tuple[float, float]:
        ours.send(True)
        spent, whole = told()
        return spent, whole

    try:
        yield told(), cost
        ours.send(False)
        process.join(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.join()


class Bytes:
    """Counts the bytes that workers answer, of all clients."""

    def __init__(self) -> None:
        self.count = 0
        self._call = WorkerClient._call

    def __enter__(self) -> Bytes:
        counted = self

        def call(client: WorkerClient, name: str, body: bytes, timeout: float | None = None) -> bytes:
            answer = counted._call(client, name, body, timeout)
            counted.count += len(body) + len(answer)
            return answer

        WorkerClient._call = call  # type: ignore[assignment, method-assign]  # counts its bytes
        return self

    def __exit__(self, *_: object) -> None:
        WorkerClient._call = self._call  # type: ignore[method-assign]  # as it was


def measured(case: Case) -> dict[str, float]:
    """Means of some looks, and of as many refreshes of the page."""
    with running(case) as (leases, cost), Bytes() as size, Collector() as collector:
        report = DriverReport(time.time(), QueryStatus("running", committed_batch=1))
        facts = ReceiverFacts(
            "orders", case.slots, {one.slot: (one, True) for one in leases}, "driver", "a query", TOKEN, report
        )
        question = Question(rows_of_each(case.slots))

        def look() -> ReceiverStatus:
            return collector.status(facts, question)

        first = look()
        assert all(slot.answers for slot in first.slots), "a worker does not answer"
        assert first.totals.rows == case.slots * case.held, f"{first.totals.rows} rows are held"
        _, before = cost()
        sent, cpu = size.count, time.process_time()
        for _ in range(LOOKS):
            look()
        driver, sent = time.process_time() - cpu, size.count - sent
        spent, after = cost()

        monitor = Monitor(look, "orders")
        monitor.look()
        request = Request("GET", "/api/status", {"top": "100"}, {})
        body = monitor.answer(request).body
        cpu = time.process_time()
        for _ in range(LOOKS):
            monitor.answer(request)
        page = time.process_time() - cpu
    return {
        "driver_cpu_ms": 1000 * driver / LOOKS,
        "worker_cpu_ms": 1000 * (after - before) / LOOKS / case.slots,
        "worker_thread_ms": 1000 * spent / LOOKS / case.slots,
        "look_kb": sent / LOOKS / 1000,
        "page_cpu_ms": 1000 * page / LOOKS,
        "page_kb": len(body) / 1000,
    }


HEADS = {
    "driver_cpu_ms": "driver, CPU ms",
    "worker_cpu_ms": "each worker, CPU ms",
    "worker_thread_ms": "of that its own thread, ms",
    "look_kb": "look, KB",
    "page_cpu_ms": "refresh, CPU ms",
    "page_kb": "refresh, KB",
}


def main() -> None:
    """Print the table."""
    print("| slots × known streams, with rows | " + " | ".join(HEADS.values()) + " |")
    print("|---|" + "---:|" * len(HEADS))
    for case in CASES:
        figures = measured(case)
        values = " | ".join(f"{figures[name]:.3g}" for name in HEADS)
        print(f"| {case.slots} × {case.known:,}, {case.held:,} | {values} |", flush=True)


if __name__ == "__main__":
    main()
