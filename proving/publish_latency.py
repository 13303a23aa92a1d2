"""Measures the time from a publish to its committed offset, in an application that does nothing else.

``python -m proving.publish_latency`` starts Spark on this machine with one gateway, publishes events one after
another, and prints the times. The result depends on the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from proving.quiet_application import STREAM, quiet_application

FIRST = 5
"""Events that are published before the measurement, in which Spark loads classes."""


def measure(folder: Path, events: int) -> list[float]:
    """Seconds of each publish, with one event in each batch."""
    from wallaroo_spark.client import Client, Event

    times = []
    with quiet_application(folder) as running, Client(running.addresses()) as client:
        for number in range(FIRST + events):
            began = time.perf_counter()
            client.publish(STREAM, Event("bench.event", number))
            times.append(time.perf_counter() - began)
    return times[FIRST:]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50, help="events to publish (default: 50)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = sorted(measure(Path(folder), given.events))
    load = os.getloadavg()[0]
    print(
        f"{len(times)} events: p50 {statistics.median(times) * 1000:.0f} ms, "
        f"p90 {times[int(len(times) * 0.9)] * 1000:.0f} ms, least {times[0] * 1000:.0f} ms; "
        f"load of the machine {load:.1f} on {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    main()
