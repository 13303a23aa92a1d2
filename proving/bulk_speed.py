"""Measures publishing in bulk: by a receiver whose query writes to the stream, and with the SDK's ``publish_many``.

``python -m proving.bulk_speed`` starts Spark on this machine with one gateway and one worker. It publishes the same
events in both ways several times, until all are committed in the stream, and prints events a second, and the processor
time of the sender. The result depends on the load of the machine, so the ratios count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from proving.quiet_application import STREAM, quiet_application

WARM = 2_000
"""Events of each kind before the measurement, in which Spark loads classes."""
LOOK_SECONDS = 0.05
"""Pause between two looks at what is committed; it is short beside a round."""


class Spent(NamedTuple):
    """What one way of publishing has taken for each event, in microseconds."""

    elapsed: float
    """Time until all events were committed."""
    sender: float
    """Processor time of the sending process, without Spark's driver in Java."""


def measure(folder: Path, events: int, rounds: int) -> dict[str, list[Spent]]:
    """The figures of each round, by the way of publishing."""
    from pyspark.sql import SparkSession

    from wallaroo_spark import BlockingConnector, Receiver, sinks

    found: dict[str, list[Spent]] = {"receiver": [], "publish_many": []}
    with quiet_application(folder, slots=4) as running, Receiver(SparkSession.active(), "bulk", workers=1) as receiver:
        checkpoint = str(folder / "receiver")
        writer = sinks.stream(running.folder, STREAM, checkpoint=checkpoint, format="cloudevents")
        receiver.start_query(receiver.stream().writeStream.foreachBatch(writer), checkpoint=checkpoint)
        with BlockingConnector(
            "bulk", instance="bench", registry=receiver.registry_url, drain_timeout=None
        ) as connector:
            ways = {"receiver": _by_receiver(connector, running), "publish_many": _by_client(running.addresses())}
            for way in ways.values():
                way(0, WARM)
            for number in range(rounds):
                begin = WARM + number * events
                for name, way in ways.items():
                    found[name].append(_spent(way, begin, begin + events))
    return found


def _by_receiver(connector: Any, running: Any) -> Callable[[int, int], None]:
    stream = connector.open("events")

    def committed() -> int:
        return sum(partition.last for partition in running.snapshot().partitions)

    def publish(begin: int, end: int) -> None:
        wanted, numbers = committed() + end - begin, range(begin, end)
        payloads = (json.dumps({"type": "bench.event", "data": _data(number)}).encode() for number in numbers)
        stream.send_many(payloads, numbers)
        connector.drain()
        while committed() < wanted:
            time.sleep(LOOK_SECONDS)

    return publish


def _by_client(addresses: list[str]) -> Callable[[int, int], None]:
    from wallaroo_spark.client import Client, Event

    def publish(begin: int, end: int) -> None:
        with Client(addresses) as client:
            events = (
                Event("bench.event", _data(number), id=f"many/{number}", source="bench") for number in range(begin, end)
            )
            assert sum(1 for _ in client.publish_many(STREAM, events)) == end - begin

    return publish


def _data(number: int) -> dict[str, Any]:
    return {"order": number, "customer": f"customer-{number % 1000}", "price": number % 97, "note": "x" * 40}


def _spent(way: Callable[[int, int], None], begin: int, end: int) -> Spent:
    began, own = time.perf_counter(), time.process_time()
    way(begin, end)
    return Spent(*(one / (end - begin) * 1e6 for one in (time.perf_counter() - began, time.process_time() - own)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000, help="events of each round (default: 50000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each way (default: 3)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.events, given.rounds)
    middles = {}
    for name, rounds in found.items():
        middle = middles[name] = Spent(*(statistics.median(values) for values in zip(*rounds, strict=True)))
        print(f"{name}: {1e6 / middle.elapsed:,.0f} events/s; {middle.sender:.1f} µs of the sender an event")
    first, second = middles["receiver"], middles["publish_many"]
    print(
        f"ratio of publish_many to the receiver: elapsed {second.elapsed / first.elapsed:.2f}, sender "
        f"{second.sender / first.sender:.2f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    main()
