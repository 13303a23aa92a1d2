"""Throughput from a connector to a sink beside Spark's ceiling, and latency."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, cast

from proving.bench.results.figures import Spread, percentile
from proving.bench.sections.ceiling import NAME, CeilingSource
from proving.bench.stage import COOKIE, Context, Installation, noop, parquet, per_million, shown
from proving.bench.usage import cpu_by_role, grown
from wallaroo_spark.connector import BlockingConnector

SIZES = {"100 B": 100, "1 KB": 1024, "10 KB": 10_240}
SINKS = ("noop", "parquet")
LOADS = (0.1, 0.5, 0.8)
BUDGET = "1g"
"""The memory budget at full speed: a smaller one makes batches shorter, and each batch has a fixed cost."""
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
OURS = ("worker", "reading tasks", "JVM")
TICK_SECONDS = 0.005
LONGEST_BATCH_SECONDS = 30.0
NO_MORE_ROWS = "Waiting for data to arrive"
"""How Spark's status says that a query is between batches."""
LONE_MESSAGES = 100
"""Messages that are sent one at a time; the second half is measured."""
ROWS_OF_A_BATCH = {100: 500_000, 1024: 100_000, 10_240: 10_000}


def end_to_end(context: Context) -> dict[str, Any]:
    """Each size into each sink, followed by the ceiling; then the SDK in place of the generator."""
    context.progress("end to end: warming up Java's compiler")
    once(context, "noop", "proving.bench.load_generator", 100)
    cases = []
    for size_name, size in SIZES.items():
        for sink in SINKS:
            context.progress(f"end to end: {size_name} into {sink}")
            run = once(context, sink, "proving.bench.load_generator", size)
            rows = median([batch["rows"] for batch in run["batches"]] or [ROWS_OF_A_BATCH[size]])
            context.progress(f"end to end: the ceiling, {size_name} into {sink}")
            top = ceiling(context, sink, size, max(1000, int(rows)))
            cases.append(case(size_name, size, sink, run, top))
            context.say(said(cases[-1]))
    context.progress("end to end: the SDK, 100 B into noop")
    sdk = once(context, "noop", "proving.bench.sections.sdk", 100)
    return {"cases": cases, "sdk": summary(sdk, 100), "revision": "draft-be", "workers": 1, "connectors": 1}


def once(context: Context, sink: str, module: str, size: int) -> dict[str, Any]:
    """One connector at full speed."""
    with Installation(context, sink_of(context, sink), memoryBudget=BUDGET) as installation:
        return installation.run(module, size=size)


def sink_of(context: Context, name: str) -> Callable[[Any], Any]:
    """The sink of that name."""
    return noop if name == "noop" else parquet(context.directory / f"rows-{time.monotonic_ns()}")


def summary(run: dict[str, Any], size: int) -> dict[str, Any]:
    """Messages and megabytes of payload a second, processor time, and the parts of batches."""
    spread, by_role = Spread.of(run["rates"]), per_million(run)
    batches = run["batches"]
    return {
        "messages_per_second": spread.to_json(),
        "megabytes_per_second": spread.middle * size / 1e6,
        "cpu_seconds_per_million": by_role,
        "ours": sum(by_role.get(role, 0.0) for role in OURS),
        "cores_busy": sum(run["seconds"].values()) / run["wall"],
        "batch_rows": median([batch["rows"] for batch in batches] or [0]),
        "batch_ms": median([batch["ms"].get("triggerExecution", 0) for batch in batches] or [0]),
    }


def case(size_name: str, size: int, sink: str, run: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """A run beside its ceiling."""
    ours, theirs = summary(run, size), summary(top, size)
    rate, limit = ours["messages_per_second"]["median"], theirs["messages_per_second"]["median"]
    return {
        "size": size_name,
        "sink": sink,
        "run": ours,
        "ceiling": theirs,
        "rate_of_ceiling": rate / limit if limit else None,
        "cpu_of_ceiling": ours["ours"] / theirs["ours"] if theirs["ours"] else None,
    }


def said(one: dict[str, Any]) -> str:
    """A case as one line."""
    run, top = one["run"], one["ceiling"]
    return (
        f"  {one['size']:>5} into {one['sink']:<8} {run['messages_per_second']['median']:>12,.0f} msg/s "
        f"{run['megabytes_per_second']:7.1f} MB/s; ceiling {top['messages_per_second']['median']:>12,.0f} msg/s"
    )


def ceiling(context: Context, sink: str, size: int, rows: int) -> dict[str, Any]:
    """The same rows made in the reading task, in batches of about the same size."""
    lengths, spark = context.lengths, context.spark
    checkpoint = context.directory / f"ceiling-{time.monotonic_ns()}"
    frame, end = made_rows(spark, rows, size, checkpoint)
    writer = sink_of(context, sink)(frame.writeStream).option("checkpointLocation", str(checkpoint))
    query = writer.start()
    try:
        time.sleep(lengths.warm_up)
        first, edges, samples = query.lastProgress, [], []
        for window in range(lengths.windows + 1):
            if window:
                time.sleep(lengths.window)
            edges.append(time.monotonic())
            samples.append(cpu_by_role(()))
        until = time.monotonic() + LONGEST_BATCH_SECONDS
        while not (progress := behind(query, first)) and time.monotonic() < until:
            time.sleep(0.1)
        end(query)
    finally:
        query.stop()
    batches = [shown(one) for one in progress]
    found = [1000 * one["rows"] / max(1, one["ms"]["triggerExecution"]) for one in batches]
    wall = edges[-1] - edges[0]
    return {
        "rates": found or [0.0],
        "seconds": grown(samples[0], samples[-1]),
        "messages": median(found or [0.0]) * wall,
        "wall": wall,
        "batches": batches,
    }


def made_rows(spark: Any, rows: int, size: int, checkpoint: Path) -> tuple[Any, Callable[[Any], None]]:
    """Rows that are made in the reading task, and a function that has their query come to the end of a batch."""
    spark.dataSource.register(CeilingSource)
    until = checkpoint.with_name(f"{checkpoint.name}-until")
    frame = spark.readStream.format(NAME).option("rows", rows).option("size", size).option("until", str(until)).load()

    def end(query: Any) -> None:
        until.touch()
        last = time.monotonic() + LONGEST_BATCH_SECONDS
        while query.isActive and query.status["message"] != NO_MORE_ROWS and time.monotonic() < last:
            time.sleep(0.01)

    return frame, end


def behind(query: Any, first: Any) -> list[Any]:
    """The batches that have ended after ``first``."""
    return [one for one in query.recentProgress if one["batchId"] > (first["batchId"] if first else -1)]


def latency(context: Context, capacity: float) -> dict[str, Any]:
    """From when a message is due until it is acknowledged, at shares of ``capacity``, beside bare micro-batches."""
    context.progress("latency: a micro-batch of one row")
    bare = {"Python source, one row": bare_batch(context, python=True), "JVM source, one row": bare_batch(context)}
    found = []
    # The capacity was measured with this budget, too.
    with Installation(context, noop, memoryBudget=BUDGET) as installation:
        context.progress("latency: one message at a time")
        lone = one_at_a_time(installation, LONE_MESSAGES)
        context.say(f"  one message at a time: {lone['p50_ms']:,.0f} ms, {lone['of_batch']:.2f} of its own batch")
        for share in LOADS:
            context.progress(f"latency: {share:.0%} of {capacity:,.0f} msg/s")
            run = installation.run(rate=share * capacity, burst=TICK_SECONDS)
            found.append({"load": share, "rate": share * capacity, **percentiles(run)})
            found[-1]["batch_ms"] = Spread.of([one["ms"]["triggerExecution"] for one in run["batches"]] or [0]).middle
            found[-1]["parts_ms"] = parts(run["batches"])
            found[-1]["cpu_seconds_per_million"] = per_million(run)
            context.say(f"  {share:>4.0%}: " + ", ".join(f"{n} {1000 * found[-1][n]:,.0f} ms" for n in SHARES))
    base = bare["Python source, one row"]["median"] / 1000
    return {"bare_ms": bare, "lone": lone, "loads": found, "p50_of_bare": [one["p50"] / base for one in found]}


def one_at_a_time(installation: Installation, messages: int) -> dict[str, float]:
    """Each message is sent when the one before is acknowledged: medians in ms, beside its batch's duration.

    ``before_ms`` is from sending until its batch begins, ``after_ms`` from the batch's end until its ACK is there. Of a
    batch that waited for its message only the time since it was sent counts.
    """
    sent, acknowledged = [], []
    with BlockingConnector(
        installation.name, instance="lone", workers=installation.receiver.addresses, cookie=COOKIE
    ) as sender:
        stream = sender.open("lone")
        for _ in range(messages):
            reported = threading.Event()
            sent.append(time.time())
            stream.send(b"x" * 100, on_delivery=lambda *_, event=reported: event.set())
            if not reported.wait(LONGEST_BATCH_SECONDS):
                raise RuntimeError(f"a message was not acknowledged within {LONGEST_BATCH_SECONDS:g} s")
            acknowledged.append(time.time())
    progress = [one for one in installation.query.recentProgress if one["numInputRows"] == 1][-messages:]
    measured = messages // 2
    took = [one["durationMs"]["triggerExecution"] for one in progress]
    # A batch may have begun before its message was sent, because the question for new messages waits for one.
    began = [
        max(start, datetime.fromisoformat(one["timestamp"]).timestamp())
        for start, one in zip(sent, progress, strict=True)
    ]
    ended = [
        datetime.fromisoformat(one["timestamp"]).timestamp() + ms / 1000 for one, ms in zip(progress, took, strict=True)
    ]

    def middle(starts: list[float], ends: list[float]) -> float:
        return median([1000 * (end - start) for start, end in zip(starts, ends, strict=True)][-measured:])

    wait, batch = middle(sent, acknowledged), middle(began, ended)
    return {
        "p50_ms": wait,
        "batch_ms": batch,
        "of_batch": wait / batch,
        "before_ms": middle(sent, began),
        "after_ms": middle(ended, acknowledged),
    }


def parts(batches: list[dict[str, Any]]) -> dict[str, float]:
    """The median of each part of a micro-batch, in ms."""
    names = sorted({name for batch in batches for name in batch["ms"]})
    return {name: median([batch["ms"].get(name, 0) for batch in batches]) for name in names}


def percentiles(run: dict[str, Any]) -> dict[str, Any]:
    """Percentiles of all measured windows, and the median percentile of each."""
    edges = run["edges"]
    windows = [
        [(wait, count) for due, wait, count in run["latencies"] if start <= due < end] for start, end in pairwise(edges)
    ]
    whole = [entry for window in windows for entry in window]
    each = {name: [percentile(window, share) for window in windows if window] for name, share in SHARES.items()}
    return {
        **{name: percentile(whole, share) for name, share in SHARES.items()},
        "windows": {name: Spread.of(values).to_json() for name, values in each.items() if values},
        "messages": sum(count for _, count in whole),
    }


def _go_on(query: Any) -> None:
    """Spark's own source has no Python process, so its query may be stopped in a batch."""


def bare_batch(context: Context, *, python: bool = False) -> dict[str, Any]:
    """How long a micro-batch of one row takes, in ms, one after the other; ``parts_ms``: the medians of its parts."""
    spark, end = context.spark, cast(Callable[[Any], None], _go_on)
    checkpoint = context.directory / f"bare-{time.monotonic_ns()}"
    if python:
        frame, end = made_rows(spark, 1, 100, checkpoint)
    else:
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        until = time.monotonic() + LONGEST_BATCH_SECONDS
        while not query.lastProgress and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(context.lengths.warm_up / 2)
        first = query.lastProgress
        time.sleep(context.lengths.measured / 2)
        progress = behind(query, first)
        end(query)
    finally:
        query.stop()
    batches = [shown(one) for one in progress]
    whole = Spread.of([one["ms"]["triggerExecution"] for one in batches] or [0]).to_json()
    return {**whole, "parts_ms": parts(batches)}
