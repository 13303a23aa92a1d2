"""Measures publishing in bulk: with the connector protocol, and with the SDK's ``publish_many``, in turn.

``python -m proving.bulk_speed`` starts Spark on this machine with one gateway. It publishes the same events in both
ways several times, until all are committed, and prints events a second, and the processor time of the sender and of the
gateway. The result depends on the load of the machine, so the ratios count. With ``--memory`` sender, gateway and
controllers are in this process, without Spark and files; then the processor time is that of all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from proving.quiet_application import SCHEMA, STREAM, quiet_application

WARM = 2_000
"""Events of each kind before the measurement, in which Spark loads classes."""


class Spent(NamedTuple):
    """What one way of publishing has taken for each event, in microseconds."""

    elapsed: float
    """Time until all events were committed."""
    sender: float
    """Processor time of the sending process, without Spark's driver in Java."""
    gateway: float
    """Processor time of the gateway."""


def measure(folder: Path, events: int, rounds: int) -> dict[str, list[Spent]]:
    """The figures of each round, by the way of publishing."""
    from wallaroo_spark.connector import BlockingConnector
    from wallaroo_spark.registry import application_registry

    found: dict[str, list[Spent]] = {"connector": [], "publish_many": []}
    with quiet_application(folder, connector_port=0) as running:
        with application_registry(running.registry_url, running.name) as registry:
            process = int(registry.leases()[0].holder.split("/")[1])
        with BlockingConnector(
            f"connectors:{running.name}", instance="bench", registry=running.registry_url, drain_timeout=None
        ) as connector:
            ways = {"connector": _by_connector(connector), "publish_many": _by_client(running.addresses())}
            for way in ways.values():
                way(0, WARM)
            for number in range(rounds):
                begin = WARM + number * events
                for name, way in ways.items():
                    found[name].append(_spent(way, begin, begin + events, process))
    return found


async def measure_in_memory(events: int, rounds: int) -> dict[str, list[float]]:
    """The processor time of an event in microseconds in each round, by the way of publishing."""
    from wallaroo_spark.client import AsyncClient, Event
    from wallaroo_spark.connector import Connector
    from wallaroo_spark.testing.memory_application import MemoryApplication, serving

    application = MemoryApplication(SCHEMA)
    found: dict[str, list[float]] = {"connector": [], "publish_many": []}
    async with (
        serving(application) as gateway,
        Connector("bench", instance="bench", workers=gateway.connectors, drain_timeout=None) as connector,
        AsyncClient([gateway.address]) as client,
    ):
        stream = await connector.open(f"{STREAM}:bulk")
        for number in range(rounds):
            numbers = range(number * events, (number + 1) * events)
            began = time.process_time()
            for one in numbers:
                await stream.send(json.dumps({"type": "bench.event", "data": _data(one)}).encode(), id=one)
            await connector.drain()
            found["connector"].append((time.process_time() - began) / events * 1e6)
            began = time.process_time()
            given = (Event("bench.event", _data(one), id=f"many/{one}", source="bench") for one in numbers)
            async for _ in client.publish_many(STREAM, given):
                pass
            found["publish_many"].append((time.process_time() - began) / events * 1e6)
    application.close()
    return found


def _by_connector(connector: Any) -> Callable[[int, int], None]:
    stream = connector.open(f"{STREAM}:bulk")

    def publish(begin: int, end: int) -> None:
        numbers = range(begin, end)
        payloads = (json.dumps({"type": "bench.event", "data": _data(number)}).encode() for number in numbers)
        stream.send_many(payloads, numbers)
        connector.drain()

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


def _spent(way: Callable[[int, int], None], begin: int, end: int, gateway: int) -> Spent:
    began, own, other = time.perf_counter(), time.process_time(), _cpu(gateway)
    way(begin, end)
    spent = time.perf_counter() - began, time.process_time() - own, _cpu(gateway) - other
    return Spent(*(seconds / (end - begin) * 1e6 for seconds in spent))


def _cpu(process: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000, help="events of each round (default: 50000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each way (default: 3)")
    parser.add_argument("--memory", action="store_true", help="without Spark: all in this process")
    given = parser.parse_args()
    if given.memory:
        rates = asyncio.run(measure_in_memory(given.events, given.rounds))
        bulk, many = (statistics.median(rates[name]) for name in ("connector", "publish_many"))
        print(
            f"processor time of an event: connector {bulk:.1f} µs, publish_many {many:.1f} µs; ratio {many / bulk:.2f}"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), given.events, given.rounds)
    middles = {}
    for name, rounds in found.items():
        middle = middles[name] = Spent(*(statistics.median(values) for values in zip(*rounds, strict=True)))
        print(
            f"{name}: {1e6 / middle.elapsed:,.0f} events/s; processor time of an event: sender {middle.sender:.1f} µs, "
            f"gateway {middle.gateway:.1f} µs"
        )
    first, second = middles["connector"], middles["publish_many"]
    print(
        f"ratio of publish_many to connector: elapsed {second.elapsed / first.elapsed:.2f}, sender "
        f"{second.sender / first.sender:.2f}, gateway {second.gateway / first.gateway:.2f}; load of the machine "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    main()
