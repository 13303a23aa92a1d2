"""The cost of planning by known and active streams: ``python -m proving.bench.plans``.

It calls the reader's own ``latestOffset`` with a worker that answers at once, so it measures plans and offsets without
the calls to workers. A row has medians, and the slowest of its batches, during which a snapshot may be written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any, cast

from pyspark.sql.streaming.datasource import ReadAllAvailable

from wallaroo_spark.options import Options
from wallaroo_spark.references import Reference, References
from wallaroo_spark.registry import QUERY_STARTS
from wallaroo_spark.sidecar.plan_place import place_record
from wallaroo_spark.source.planner import Limits, Plan
from wallaroo_spark.source.reader import WallarooStreamReader

STREAMS_AN_INSTANCE = 100


class OneWorker:
    """A fleet of one worker that has one row of each active stream."""

    def __init__(self, record: str) -> None:
        self.checkpoint, self.query, self.stamp = record, QUERY_STARTS, 0
        self.ends: dict[str, dict[str, Reference]] = {}

    def wait_for_first_look(self, seconds: float) -> None:
        """Return at once: the fleet is known."""

    def plan(self, start: References, limits: Limits) -> Plan:
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


def measure(known: int, active: int, batches: int) -> dict[str, float]:
    """Milliseconds and bytes of each batch, over ``batches`` batches."""
    # A snapshot may still be written while the folder is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        worker = OneWorker(place_record(folder))
        reader = WallarooStreamReader(Options(receiver="orders", registry="redis://127.0.0.1:1", token="t"))
        reader.__dict__["_fleet"] = cast(Any, worker)
        reader.__dict__["_looked"] = True
        worker.move(known, known, 0)
        value = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        planning, between, used = [], [], []
        for batch in range(1, batches + 1):
            worker.move(known, active, batch)
            before = json.loads(json.dumps(value))
            began, cpu = time.perf_counter(), time.thread_time()
            value = reader.latestOffset(before, ReadAllAvailable())
            planning.append(time.perf_counter() - began)
            used.append(time.thread_time() - cpu)
            began = time.perf_counter()
            start, end = reader._book.references(before), reader._book.references(value)
            assert end.changes_since(start) is not None
            between.append(time.perf_counter() - began)
        reader._agreement.close()
        return {
            "known": known,
            "active": active,
            "offset bytes": len(json.dumps(value)),
            "latestOffset ms": round(statistics.median(planning) * 1e3, 2),
            "CPU ms": round(statistics.median(used) * 1e3, 2),
            "slowest ms": round(max(planning) * 1e3, 2),
            "start to end ms": round(statistics.median(between) * 1e3, 3),
        }


def main() -> None:
    """Print a row for each pair of known and active streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--known", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--active", type=int, nargs="*", default=[100, 1_000, 10_000])
    parser.add_argument("--batches", type=int, default=60)
    args = parser.parse_args()
    for known in args.known:
        for active in args.active:
            if active <= known:
                print(json.dumps(measure(known, active, args.batches)), flush=True)


if __name__ == "__main__":
    main()
