"""The cost of planning for given numbers of workers, known streams and active streams, without Spark.

All workers are in one process beside the planner's: each is a worker's state behind its inner port, and the planner
asks them as the source does. On a cluster each worker has a core of its own, so the planner's processor time is the
part that grows with the workers, and the elapsed time here is an upper bound.
``python -m proving.bench --only fleet`` runs it.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, cast

from wallaroo_spark.inner.client import fleet_keys
from wallaroo_spark.inner.notices import Followers, LastCommit, NoticeSender
from wallaroo_spark.options import Options
from wallaroo_spark.protocol import REVISIONS, ConnectorSession, Message, Notify
from wallaroo_spark.references import StreamKey, VersionedReferences
from wallaroo_spark.registry import QUERY_STARTS, Lease
from wallaroo_spark.runtime.python_tasks import rare_collections, without_collections
from wallaroo_spark.source.fleet_view import FleetView, SlotView
from wallaroo_spark.source.planner import Limits
from wallaroo_spark.worker.buffer.ephemeral import Origin
from wallaroo_spark.worker.flight_server import InnerPort
from wallaroo_spark.worker.machine import events as e
from wallaroo_spark.worker.machine.state import WorkerState
from wallaroo_spark.worker.reads import Reads

T = TypeVar("T")
TOKEN = "a token for this run"
COOKIE = "a cookie for this run"
REVISION = REVISIONS["draft-be"]
ACTIVE = 100
"""Active streams in each slot, as in the goals of the bench."""
STREAMS_AN_INSTANCE = 100
FIRST = 7_000_000_000_000_000_000
"""Ids of streams are as large as those that the SDK makes of names."""
PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.01
FIGURES = ("plan_ms", "plan_cpu_ms", "plan_bytes", "tell_ms", "tell_cpu_ms", "tell_bytes")
"""Elapsed time, the planner's processor time, and bytes: of planning, and of telling all workers of the commit at the
same time, each from a thread of its own, as the announcer does."""
CASES = ((1, 1_000), (1, 100_000), (8, 1_000), (8, 100_000), (64, 1_000), (64, 10_000), (256, 1_000))
"""Slots, and known streams in each. 64 slots of 100,000 would take some 6 GB in one process."""


class BareWorker:
    """A worker's state and its inner port. ``loop`` runs in another thread."""

    def __init__(self, slot: int, loop: asyncio.AbstractEventLoop) -> None:
        self.slot = slot
        self.state = WorkerState(Options(cookie=COOKIE, credits="fixed"), Origin(slot, 1), COOKIE)
        self.reads: Reads | None = Reads(self.state.buffer, lambda ranges: None, loop.call_later)
        self._loop = loop
        self._sent = 0
        self.port = InnerPort(self, "127.0.0.1", TOKEN, fleet_keys(TOKEN))
        self.lease = Lease(slot, 1, 1, "bench", "", f"127.0.0.1:{self.port.port}")
        self.port.serve_locally(self.lease.flight)

    def call(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def on_loop(self, work: Callable[[WorkerState], T]) -> T:
        """Ask the state."""
        return work(self.state)

    async def apply(self, event: e.Event) -> None:
        """Give the state an event."""
        self._handle(event)

    def stop_from_outside(self, reason: str) -> None:
        """It stops with the bench."""

    def status(self) -> dict[str, Any]:
        """The state's status."""
        return self.state.status()

    def _handle(self, event: e.Event) -> list[e.Instruction]:
        out = self.state.handle(event)
        if self.reads is not None and any(isinstance(one, e.WakeReaders) for one in out):
            self.reads.wake()
        return out

    def begin(self, known: int = 0) -> None:
        """A query has started; one session, whose instance has ``known`` streams, opens the active streams."""

        async def begin() -> None:
            instance = f"shop-{self.slot}"
            self._handle(e.Rewound(1, -1, {}))
            self._handle(e.Connected(1, "10.0.0.1:1", 0.0))
            session = ConnectorSession(REVISION)
            hello = session.hello(version="0.0.1", cookie=COOKIE.encode(), program="bench", instance=instance)
            self._handle(e.Received(((1, hello),), 1))
            self._handle(e.Assigned(1, instance, self.slot, "here:1"))
            references = {StreamKey(instance, FIRST + number): 100 + number for number in range(known)}
            self._handle(e.Committed(1, -1, references, scopes=[instance]))
            notes = b"".join(REVISION.encode(Notify(FIRST + at, f"stream {at}")) for at in range(ACTIVE))
            self._handle(e.Received(((1, notes),), 1))

        self.call(begin(), PATIENCE_SECONDS)

    def receive(self) -> None:
        """A message comes in each active stream."""
        self._sent += 1
        data = b"".join(REVISION.encode(Message(FIRST + at, self._sent, b"x" * 100)) for at in range(ACTIVE))

        async def receive() -> None:
            self._handle(e.Received(((1, data),), self._sent))

        self.call(receive(), PATIENCE_SECONDS)


def serve(slots: int, pipe: Any) -> None:
    """The workers' process: tells their addresses, then has messages come in whenever it is told to, until the end."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="bench-workers", daemon=True).start()
    workers = [BareWorker(slot, loop) for slot in range(slots)]
    for worker in workers:
        worker.begin()
    # A worker has a heap of its own; here each collection of garbage would visit those of all.
    gc.collect()
    with rare_collections():
        pipe.send([worker.lease for worker in workers])
        while pipe.recv():
            for worker in workers:
                worker.receive()
            pipe.send(True)
    for worker in workers:
        worker.port.shutdown()


class Leases:
    """The registry, as far as a source asks it."""

    def __init__(self, leases: list[Lease]) -> None:
        self._leases = leases

    def fleet(self) -> dict[str, str]:
        """The fleet's record."""
        return {"workers": str(len(self._leases)), "query": QUERY_STARTS}

    def leases(self) -> dict[int, Lease]:
        """A lease a worker."""
        return {lease.slot: lease for lease in self._leases}


@contextmanager
def running(slots: int) -> Iterator[tuple[Callable[[], None], FleetView]]:
    """So many workers, and the view of a source that has found them; the function has messages come in."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(slots, theirs), name="bench-workers", daemon=True)
    process.start()

    def told() -> Any:
        if not ours.poll(PATIENCE_SECONDS):
            raise RuntimeError(f"the workers say nothing for {PATIENCE_SECONDS:g} s")
        return ours.recv()

    def receive() -> None:
        ours.send(True)
        told()

    with ExitStack() as last:
        last.callback(process.kill)
        view = FleetView(cast(Any, Leases(told())), TOKEN)
        last.callback(view.stop)
        view.start()
        yield receive, view
        view.stop()
        ours.send(False)
        process.join(PATIENCE_SECONDS)


def known_streams(slot: int, count: int) -> dict[str, dict[str, int]]:
    """Streams that were seen in a slot once, by instance."""
    found: dict[str, dict[str, int]] = {}
    for number in range(count):
        instance = f"shop-{slot}-{number // STREAMS_AN_INSTANCE}"
        found.setdefault(instance, {})[str(FIRST + number)] = 100 + number
    return found


class Counted:
    """Counts the bytes of the calls to a worker."""

    def __init__(self, view: SlotView) -> None:
        self.bytes = self.told = 0
        self._call = view.client._call
        view.client._call = self  # type: ignore[method-assign]  # times its calls

    def __call__(self, name: str, body: bytes, timeout: float | None = None) -> bytes:
        """The call itself."""
        answer = self._call(name, body, timeout)
        if name == "plan":
            self.bytes += len(body) + len(answer)
        elif name == "committed":
            self.told += len(body)
        return answer


def case(slots: int, known: int, batches: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Medians of some batches: planning, and telling all workers of the commit."""
    say(f"fleet: {slots} slots with {known:,} known streams each")
    with running(slots) as (receive, view), ThreadPoolExecutor(slots) as threads:
        _until(lambda: len(view.slots()) == slots)
        references: dict[str, dict[str, int]] = {}
        for slot in range(slots):
            references |= known_streams(slot, known)
        start = VersionedReferences.of(references)
        counted = [Counted(one) for one in view.slots().values()]
        commits = [LastCommit(1, -1, start)]
        changed, followers = threading.Condition(), Followers()
        senders = [
            NoticeSender(slot, one.client, changed, lambda: commits[-1], followers)
            for slot, one in view.slots().items()
        ]
        list(threads.map(NoticeSender.send, senders))
        figures: dict[str, list[float]] = {name: [] for name in FIGURES}
        # The first batch makes the connections.
        for batch in range(batches + 1):
            receive()
            _until(lambda: all(one.news.answer.get("buffered_bytes") for one in view.slots().values()))
            before = sum(one.bytes for one in counted)
            began, cpu = time.perf_counter(), time.process_time()
            with without_collections():
                plan = view.plan(start, Limits())
            row = [1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)]
            if plan.rows != slots * ACTIVE:
                raise RuntimeError(f"planned {plan.rows} rows, and {slots * ACTIVE} have come")
            row.append(sum(one.bytes for one in counted) - before)
            start = start.with_changes(plan.ends)
            commits.append(LastCommit(1, batch, start))
            before = sum(one.told for one in counted)
            began, cpu = time.perf_counter(), time.process_time()
            list(threads.map(NoticeSender.send, senders))
            row += [1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)]
            row.append(sum(one.told for one in counted) - before)
            if failures := [sender.failure for sender in senders if sender.failure]:
                raise RuntimeError(f"{len(failures)} notices failed") from failures[0]
            if batch:
                for name, value in zip(FIGURES, row, strict=True):
                    figures[name].append(value)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return {"slots": slots, "known": known, "active": ACTIVE, **medians}


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the workers are not ready after {PATIENCE_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)


def measure(batches: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All cases."""
    return {"active": ACTIVE, "cases": [case(slots, known, batches, say) for slots, known in CASES]}
