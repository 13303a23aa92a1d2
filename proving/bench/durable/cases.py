"""Durable streams and pipelines: one application in the bench's Spark, its gateway, and a client in this process.

Each figure stands beside the duration of the batches in which it was measured: a publisher waits for the batch that
has its event, and on average for half of the one before. Events of the larger cases are written into the inbox of a
gateway before the application starts, so neither client nor gateway are measured with the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from proving.bench.stage import Context
from wallaroo_spark.api.limits import STAGE_DELIVERIES
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.client import AsyncClient, Event
from wallaroo_spark.engine.application.application import Application
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey, ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.streams import read_history
from wallaroo_spark.streams.inbox import InboxWriter
from wallaroo_spark.streams.places import checkpoint_of

STREAM = "bench/events"
PIPELINE = "bench/steps"
REQUEST_EVENTS = 1_000
"""Events of one request in the inbox."""
REQUESTS = 100
"""The most requests of a batch with stages inside Spark."""
WARM_UP = 5
"""Requests before anything is measured; Spark starts its processes for the first ones."""
LIMIT_SECONDS = 300.0
"""The longest wait for one case."""

TIERS = ("first", "second", "third")
_NUMBERS = itertools.count(1)
_FUNCTION = "proving.bench.durable.cases:doubled"


def doubled(frame: Any) -> Any:
    """The function of a stage: twice the number in the data of each event."""
    return frame["root_event"].map(lambda event: {"twice": 2 * event["data"]})


def schema(partitions: int, stages: str, parallel: int) -> str:
    """The documents of an application with one stream and one pipeline on it."""
    return f"""
kind: Namespace
name: bench
---
kind: Stream
name: events
namespace: bench
partitions: {partitions}
---
kind: Pipeline
name: steps
namespace: bench
inputStream: events
triggers: [step]
maxParallel: {parallel}
startPoint: {{location: beginning}}
stages:
{stages}
"""


OUTSIDE = "  - name: only\n"
IN_SPARK = f"  - name: only\n    run: {_FUNCTION}\n"
THREE = "  - name: first\n  - name: second\n    dependencies: [first]\n  - name: third\n    dependencies: [second]\n"


def measure(context: Context) -> dict[str, Any]:
    """All cases; each has an application of its own in an empty folder."""
    quick = context.lengths.messages < 65_536
    found: dict[str, Any] = {}
    context.progress("durable: warming up Java's compiler")
    publish(context, 1, 20)
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "publish": lambda: publish(context, 1, 20 if quick else 60),
        "tiers": lambda: tiers(context, 5 if quick else 20),
        "deliveries": lambda: deliveries(context, 2_000 if quick else 40_000),
        "group": lambda: group(context, 5_000 if quick else 50_000),
        "functions": lambda: functions(context, 190_000 if quick else 390_000),
    }
    for name, case in cases.items():
        context.progress(f"durable: {name}")
        found[name] = case()
        context.say(f"  {name}: {found[name]}")
    found["active"] = []
    for active in (10, 1_000) if quick else (10, 1_000, 100_000):
        context.progress(f"durable: {active:,} active instances")
        found["active"].append({"active": active, **parked(context, active, 10 if quick else 30)})
        context.say(f"  active: {found['active'][-1]}")
    found["partitions"] = []
    for partitions in (1, 8) if quick else (1, 8, 64):
        context.progress(f"durable: {partitions} partitions")
        case_found = publish(context, partitions, 10 if quick else 30)
        found["partitions"].append({"partitions": partitions, **case_found})
        context.say(f"  partitions: {found['partitions'][-1]}")
    return found


def publish(context: Context, partitions: int, requests: int) -> dict[str, Any]:
    """One publisher that waits for each answer; each request has an event for every partition."""

    async def work(application: Application) -> list[float]:
        async with AsyncClient(application.addresses(), timeout=LIMIT_SECONDS) as client:
            return [await _published(client, partitions, at) for at in range(-WARM_UP, requests)][WARM_UP:]

    with running(context, schema(partitions, OUTSIDE, 1)) as application:
        took = asyncio.run(asyncio.wait_for(work(application), LIMIT_SECONDS))
        return {"milliseconds": _middle(took), "batch_milliseconds": _batches(application)}


async def _published(client: AsyncClient, partitions: int, at: int) -> float:
    began = time.monotonic()
    events = [Event("other", "x" * 100, extensions={"partitionkey": str(one)}) for one in range(partitions)]
    await client.publish(STREAM, *events)
    return time.monotonic() - began


def tiers(context: Context, instances: int) -> dict[str, Any]:
    """A pipeline of three tiers outside Spark: from publish to the committed ack of the last stage, one at a time."""

    async def work(application: Application) -> list[float]:
        async with AsyncClient(application.addresses(), timeout=LIMIT_SECONDS) as client:
            ended: asyncio.Queue[int] = asyncio.Queue()
            workers = [asyncio.create_task(_work(client, stage, 1, ended)) for stage in TIERS]
            took = []
            for _ in range(-2, instances):
                began = time.monotonic()
                await client.publish(STREAM, Event("step", "1"))
                while await ended.get() != TIERS.index("third"):
                    pass
                took.append(time.monotonic() - began)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            return took[2:]

    with running(context, schema(1, THREE, 50)) as application:
        took = asyncio.run(asyncio.wait_for(work(application), LIMIT_SECONDS))
        return {"milliseconds": _middle(took), "batch_milliseconds": _batches(application)}


async def _work(client: AsyncClient, stage: str, concurrency: int, ended: asyncio.Queue[int]) -> None:
    async with client.stage(PIPELINE, stage, concurrency=concurrency) as member:
        acks: set[asyncio.Task[Any]] = set()
        place = TIERS.index(stage) if stage in TIERS else 0

        async def ack(work: Any) -> None:
            await work.ack("done")
            ended.put_nowait(place)

        async for work in member:
            acks.add(task := asyncio.create_task(ack(work)))
            task.add_done_callback(acks.discard)


def deliveries(context: Context, instances: int) -> dict[str, Any]:
    """One worker outside Spark with default settings: acks a second from the first to the last."""

    async def work(application: Application) -> float:
        async with AsyncClient(application.addresses(), timeout=LIMIT_SECONDS) as client:
            ended: asyncio.Queue[int] = asyncio.Queue()
            worker = asyncio.create_task(_work(client, "only", STAGE_DELIVERIES, ended))
            await ended.get()
            began = time.monotonic()
            for _ in range(instances - 1):
                await ended.get()
            took = time.monotonic() - began
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
            return took

    with running(context, schema(1, OUTSIDE, 10_000), waiting=instances) as application:
        _until_read(application, instances)
        took = asyncio.run(asyncio.wait_for(work(application), LIMIT_SECONDS))
        return {"a_second": (instances - 1) / took, "batch_milliseconds": _batches(application)}


def group(context: Context, events: int) -> dict[str, Any]:
    """One member of a group with default settings, which acks each delivery: events a second from the first on."""

    async def work(application: Application) -> float:
        async with (
            AsyncClient(application.addresses(), timeout=LIMIT_SECONDS) as client,
            client.consume(STREAM, group="all", start="beginning") as member,
        ):
            began, seen = 0.0, 0
            async for delivery in member:
                async with delivery:
                    began = began or time.monotonic()
                    seen += len(delivery.events)
                if seen >= events:
                    break
            return (seen - len(delivery.events)) / (time.monotonic() - began)

    with running(context, schema(1, OUTSIDE, 1), waiting=events) as application:
        _until_read(application, events)
        rate = asyncio.run(asyncio.wait_for(work(application), LIMIT_SECONDS))
        return {"a_second": rate, "batch_milliseconds": _batches(application)}


def functions(context: Context, instances: int) -> dict[str, Any]:
    """Stages inside Spark, one tier, four partitions: instances a second of the batches' own time.

    All wait in the inbox. The first batch, for which Spark starts its processes, is not counted.
    """
    with running(
        context, schema(4, IN_SPARK, 10_000), waiting=instances, partitions=4, max_rows=REQUESTS
    ) as application:
        _, *counted = _until_read(application, instances)
        _ended(context, application, instances)
        done = REQUEST_EVENTS * sum(one["numInputRows"] for one in counted)
        seconds = sum(one["durationMs"]["triggerExecution"] for one in counted) / 1000
        return {"instances": done, "a_second": done / seconds, "batches": len(counted)}


def parked(context: Context, active: int, requests: int) -> dict[str, Any]:
    """Instances that wait for a worker, and one publisher beside them: the price of a batch with much state."""

    async def work(application: Application) -> list[float]:
        async with AsyncClient(application.addresses(), timeout=LIMIT_SECONDS) as client:
            return [await _published(client, 1, at) for at in range(-WARM_UP, requests)][WARM_UP:]

    with running(context, schema(1, OUTSIDE, 1_000_000), waiting=active) as application:
        _until_read(application, active)
        took = asyncio.run(asyncio.wait_for(work(application), LIMIT_SECONDS))
        return {"milliseconds": _middle(took), "batch_milliseconds": _batches(application)}


@contextlib.contextmanager
def running(
    context: Context, text: str, waiting: int = 0, partitions: int = 1, **options: Any
) -> Iterator[Application]:
    """An application in an empty folder, with events in its inbox from before its start."""
    folder = context.directory / f"durable-{next(_NUMBERS)}"
    folder.mkdir(parents=True)
    try:
        document = folder.parent / f"{folder.name}.yaml"
        document.write_text(text)
        apply_files(SchemaStore(str(folder)), [str(document)], time.time())
        if waiting:
            _fill(folder, waiting, partitions)
        tasks = min(2, partitions)
        options = {"move_seconds": 0.0, "state_partitions": tasks, **options}
        with Application(context.spark, str(folder), **options) as application:
            yield application
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path, events: int, partitions: int) -> None:
    """Write requests of events into the inbox of a gateway that is no more."""
    writer = InboxWriter(str(folder), "earlier")
    generation = writer.open()
    rows = []
    for request, first in enumerate(range(0, events, REQUEST_EVENTS), 1):
        records = tuple(
            CloudEvent(str(at), "bench", "step", b"%d" % at, (("datacontenttype", "application/json"),))
            for at in range(first, min(first + REQUEST_EVENTS, events))
        )
        event = RecordsPublished(ReplyTo("earlier", generation, request), records)
        rows.append((PartitionKey(STREAM, request % partitions), encode(event)))
    for at in range(0, len(rows), 10):
        writer.write(rows[at : at + 10])


def _until_read(application: Application, events: int) -> list[Any]:
    """Wait until the records of all events are in committed batches; returns the progress of these batches."""
    until = time.monotonic() + LIMIT_SECONDS
    files = CheckpointFiles(checkpoint_of(application.folder))
    while time.monotonic() < until:
        if files.committed() is not None and _records(application) >= events:
            return _progress(application)
        time.sleep(0.2)
    raise RuntimeError(f"{events:,} events were not read within {LIMIT_SECONDS:.0f} s: {application.status()}")


def _ended(context: Context, application: Application, instances: int) -> int:
    """Wait until the history has the end of all instances; returns their number."""
    until = time.monotonic() + LIMIT_SECONDS
    while (ended := read_history(context.spark, application.folder).filter("outcome = 'done'").count()) < instances:
        if time.monotonic() > until:
            raise RuntimeError(f"{ended:,} of {instances:,} instances have ended: {application.status()}")
        time.sleep(0.5)
    return ended


def _records(application: Application) -> int:
    table = Path(application.folder) / "streams" / STREAM
    found = 0
    for partition in table.glob("partition=*"):
        found += max((int(file.stem.split("-")[1]) for file in partition.glob("*.parquet")), default=0)
    return found


def _progress(application: Application) -> list[Any]:
    """The progress of each batch that has read rows, from the first on."""
    return [one for one in application.query.recentProgress if one["numInputRows"]]


def _batches(application: Application) -> float:
    took = [one["durationMs"]["triggerExecution"] for one in _progress(application)]
    return float(median(took[WARM_UP:] or took)) if took else float("nan")


def _middle(seconds: list[float]) -> float:
    return 1000 * median(seconds)
