"""The cost of planning by known and active streams, up to a million and 10,000.

It calls the reader's own ``latestOffset`` with a worker that answers at once, so it measures plans and offsets without
the calls to workers. A row has medians, and the slowest of its batches, during which a snapshot may be written.
``python -m proving.bench --only plans`` runs it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from pyspark.sql.streaming.datasource import ReadAllAvailable

from wallaroo_spark.options import Options
from wallaroo_spark.references import Reference, References
from wallaroo_spark.sidecar.plan_files import place_record
from wallaroo_spark.source.fleet_view import FedRecord
from wallaroo_spark.source.planner import Limits, Plan
from wallaroo_spark.source.reader import WallarooStreamReader

STREAMS_AN_INSTANCE = 100
ACTIVE = (100, 1_000, 10_000)
BATCHES = 40
SNAPSHOT_SECONDS = 60.0


class OneWorker:
    """A fleet of one worker that has one row of each active stream."""

    def __init__(self, record: str) -> None:
        self.checkpoint, self.fed, self.stamp = record, FedRecord(known=True, query="a query"), 0
        self.hurried = False
        self.ends: dict[str, dict[str, Reference]] = {}

    def wait_for_first_look(self, seconds: float) -> None:
        """Return at once: the fleet is known."""

    def plan(self, start: References, limits: Limits, *, everybody: bool) -> Plan:
        """The ends of the active streams."""
        return Plan(self.ends, sum(map(len, self.ends.values())), 0, {})

    def move(self, known: int, active: int, batch: int) -> None:
        """Add rows in ``active`` of the known streams, different streams each time."""
        self.stamp += 1
        self.ends = {}
        for number in range(active):
            stream = (batch * active + number) % known
            scope = f"instance-{stream // STREAMS_AN_INSTANCE}"
            self.ends.setdefault(scope, {})[str(7_000_000_000 + stream)] = 100 + batch


@contextmanager
def query(known: int) -> Iterator[tuple[OneWorker, WallarooStreamReader, dict[str, Any]]]:
    """A reader whose first batch had a row of each known stream, its worker, and the offset of that batch."""
    # A snapshot may still be written while the folder is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        worker = OneWorker(place_record(folder))
        reader = WallarooStreamReader(Options(receiver="orders", registry="redis://127.0.0.1:1", token="t"))
        reader.__dict__["_fleet"] = cast(Any, worker)
        reader.__dict__["_looked"] = True
        worker.move(known, known, 0)
        try:
            value = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            worker.move(known, 1, 1)
            value = reader.latestOffset(value, ReadAllAvailable())
            _await_snapshot(reader)
            yield worker, reader, value
        finally:
            reader._election.close()


def _await_snapshot(reader: WallarooStreamReader) -> None:
    """Wait for the snapshot of the first batch, which had a row of every stream; no other batch is like it."""
    until = time.monotonic() + SNAPSHOT_SECONDS
    while reader._book._snapshot_under_way and time.monotonic() < until:
        time.sleep(0.01)


def case(known: int, active: int, batches: int) -> dict[str, Any]:
    """Milliseconds and bytes of each batch: medians of ``batches`` batches, and the slowest."""
    with query(known) as (worker, reader, first):
        value = first
        planning, between, used = [], [], []
        for batch in range(2, batches + 2):
            worker.move(known, active, batch)
            before = json.loads(json.dumps(value))
            began, cpu = time.perf_counter(), time.thread_time()
            value = reader.latestOffset(before, ReadAllAvailable())
            planning.append(1000 * (time.perf_counter() - began))
            used.append(1000 * (time.thread_time() - cpu))
            began = time.perf_counter()
            start, end = reader._book.references(before), reader._book.references(value)
            assert end.changes_since(start) is not None
            between.append(1000 * (time.perf_counter() - began))
    return {
        "known": known,
        "active": active,
        "offset_bytes": len(json.dumps(value)),
        "plan_ms": statistics.median(planning),
        "plan_cpu_ms": statistics.median(used),
        "slowest_ms": max(planning),
        "changes_ms": statistics.median(between),
    }


def measure(
    say: Callable[[str], None],
    known: tuple[int, ...],
    active: tuple[int, ...] = ACTIVE,
    batches: int = BATCHES,
) -> dict[str, Any]:
    """Each number of known streams with each number of active ones."""
    cases = []
    for streams in known:
        for busy in active:
            if busy <= streams:
                say(f"plans: {streams:,} known streams, {busy:,} active")
                cases.append(case(streams, busy, batches))
    return {"batches": batches, "cases": cases}
