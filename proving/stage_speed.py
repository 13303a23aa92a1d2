"""How many instances of one stage outside Spark a gateway and a worker finish, and what each takes of the processor.

The controllers and the gateway are the product's, in one process and in memory; the worker is in this one, with default
settings. So this is the part of an instance that is neither Spark's nor a file's.
``python -m proving.stage_speed --instances 20000``
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from typing import Any

from wallaroo_spark.client import AsyncClient, Event
from wallaroo_spark.client.members import StageWork
from wallaroo_spark.runtime.python_tasks import rare_collections
from wallaroo_spark.testing import FakeApplication

SCHEMA = """
kind: Namespace
name: speed
---
kind: Stream
name: events
namespace: speed
---
kind: Pipeline
name: steps
namespace: speed
inputStream: events
triggers: [step]
maxParallel: 10000
startPoint: {location: beginning}
stages:
  - name: only
"""
REQUEST = 1_000
"""Events of a publish."""


def serve(pipe: Any) -> None:
    """The application's process: tells its address, and its processor time whenever it is asked, until the end."""
    with rare_collections(), FakeApplication(SCHEMA) as application:
        pipe.send(application.address)
        while pipe.recv():
            pipe.send(time.process_time())


async def work(address: str, instances: int) -> float:
    """Publish the events, then work on all of them; returns the seconds from the first delivery to the last ack."""
    async with AsyncClient(address) as client:
        for first in range(0, instances, REQUEST):
            events = [Event("step", {"number": number}) for number in range(first, min(first + REQUEST, instances))]
            await client.publish("speed/events", *events)
        async with client.stage("speed/steps", "only") as member, asyncio.TaskGroup() as acks:
            began, left = 0.0, instances

            async def ack(one: StageWork) -> None:
                await one.ack("done")

            async for one in member:
                began = began or time.monotonic()
                acks.create_task(ack(one))
                left -= 1
                if not left:
                    break
        return time.monotonic() - began


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="stage_speed", description="Instances outside Spark, without Spark.")
    parser.add_argument("--instances", type=int, default=20_000)
    instances = parser.parse_args().instances
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()

    def spent() -> tuple[float, float]:
        ours.send(True)
        return time.process_time(), ours.recv()

    address = ours.recv()
    before = spent()
    seconds = asyncio.run(work(address, instances))
    worker, application = (1e6 * (after - earlier) / instances for after, earlier in zip(spent(), before, strict=True))
    ours.send(False)
    process.join(30)
    print(
        f"{instances:,} instances, {instances / seconds:,.0f} a second; processor time of an instance with its "
        f"publish: worker's process {worker:,.0f} µs, gateway and controllers {application:,.0f} µs"
    )


if __name__ == "__main__":
    main()
