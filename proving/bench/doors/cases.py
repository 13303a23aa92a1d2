"""Doors: producers that people already have, into noop; decoding; and what doors cost when nobody sends.

A rate counts rows that Spark has committed, from the end of one batch to the end of a later one. The clients are in
processes of their own on the same cores.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from proving.bench.results.figures import Spread
from proving.bench.sections.endtoend import BUDGET
from proving.bench.sections.kafka import (
    START_SECONDS,
    TRIGGER_SECONDS,
    WARM_BATCHES,
    Child,
    fetched_jars,
    kept_up,
    of_kafka,
    producing,
    program,
    total,
)
from proving.bench.stage import ROOT, Context, Installation, noop
from proving.bench.usage import cpu_by_role, grown, memory
from proving.processes import end
from proving.producers import command, telemetry
from proving.producers.telemetry.python_exporter import collector
from wallaroo_spark import otel
from wallaroo_spark.columnar.schema import ROW_SCHEMA
from wallaroo_spark.doors.kafka.rows import expand
from wallaroo_spark.registry.embedded import lasting_port

SIZE = 100
NODES = 4
STEADY = 200_000.0
"""Messages a second that both chains take on two cores."""
ONE_PRODUCER = {"linger.ms": 5, "batch.size": 1 << 20, "queue.buffering.max.messages": 1_000_000, "acks": "1"}
"""Settings of the producer that sends to either chain. Its queue has room for two batches of a second."""
BATCHES = {"16 KB": 16_384, "1 MB": 1_000_000}
"""Sizes of record batches: the default limits of Java's client and of librdkafka."""
DECODED = 100_000
"""Records of one decoding."""
POSTS = {
    "NDJSON of 1 MB": {"clients": 16, "lines": 10_000, "size": SIZE},
    "one message": {"clients": 100, "lines": 1, "size": SIZE},
}
SPANS = {"clients": 64, "spans": 512}
"""Clients of a Collector, and the spans of a request; the SDKs send as many by default."""
MANY = 1_000_000_000
"""More records than a producer sends before it is ended."""
SETTLE_SECONDS = 2.0
ANSWER_SECONDS = 60.0
MEMORY_REPETITIONS = 3


def measure(context: Context) -> dict[str, Any]:
    """All figures; a part whose programs cannot be had is left out, and says so."""
    found: dict[str, Any] = {"size": SIZE, "decode": _decoding(context), "memory": _memory(context)}
    ports = _ports()
    with Installation(context, noop, memoryBudget=BUDGET, cookie="", **ports) as installation:
        found["posts"] = {}
        for name, load in POSTS.items():
            context.progress(f"doors: HTTP, posts of {name}")
            command = program(
                "proving.bench.doors.http_posts", port=ports["http_port"], **load, seconds=_seconds(context)
            )
            found["posts"][name] = run = _run(installation, command)
            run["posts_per_second"] = run["rows_per_second"] / load["lines"]
            context.say(
                f"  HTTP, posts of {name}: {run['posts_per_second']:,.0f}/s, {run['megabytes_per_second']:.1f} MB/s"
            )
        bootstrap = f"127.0.0.1:{ports['kafka_port']}"
        found["producers"] = {}
        for name, line in _producers(context, bootstrap).items():
            context.progress(f"doors: {name}")
            found["producers"][name] = run = _run(installation, line)
            context.say(f"  {name}: {run['rows_per_second']:,.0f} records/s, {run['megabytes_per_second']:.1f} MB/s")
    found["chains"] = _chains(context)
    found["spans"] = _spans(context)
    return found


def _ports() -> dict[str, Any]:
    first = lasting_port(range(NODES + 1))
    return {"kafka_port": first, "kafka_nodes": NODES, "http_port": first + NODES}


def _seconds(context: Context) -> float:
    """How long a client of its own end sends."""
    return START_SECONDS / 4 + context.lengths.warm_up + context.lengths.measured


def _producers(context: Context, bootstrap: str) -> dict[str, list[str]]:
    """Kafka producers with their own defaults; Java's is left out where it cannot be built."""
    found = {"confluent-kafka": producing(bootstrap, SIZE, 0.0, START_SECONDS, {})}
    context.progress("doors: building Java's producer")
    try:
        java = command("java")
    except (RuntimeError, OSError, subprocess.SubprocessError, pytest.skip.Exception) as error:
        context.say(f"  Java's producer is left out: {error}")
        return found
    load = {"bootstrap": bootstrap, "topic": "bench", "client-id": "java", "first": 0, "count": MANY}
    # Without a key Java chooses the partitions itself, and fills a batch before it takes the next one.
    load |= {"value-bytes": SIZE, "key": "", "lines": "failed"}
    found["Java"] = [*java, *(text for name, value in load.items() for text in (f"--{name}", str(value)))]
    return found


def _run(installation: Installation, line: Sequence[str]) -> dict[str, Any]:
    """Run a client until the windows are over: committed rows a second, and the processor time of everything."""
    lengths, query = installation.context.lengths, installation.query
    # Spark reports a batch a moment after it has committed it.
    progress = query.lastProgress
    before = -1 if progress is None else progress["batchId"]
    with Child(line) as client, contextlib.ExitStack() as last:
        last.callback(client.kill)
        until = time.monotonic() + START_SECONDS
        while len(_batches(query, before)) < WARM_BATCHES:
            if time.monotonic() >= until:
                raise RuntimeError(f"{' '.join(line[:3])} sent nothing within {START_SECONDS:.0f} s")
            time.sleep(0.1)
        time.sleep(lengths.warm_up)
        workers = installation.workers
        began, seconds = time.time(), cpu_by_role(workers)
        time.sleep(lengths.measured)
        ended, seconds = time.time(), grown(seconds, cpu_by_role(workers))
        batches = [one for one in _batches(query, before) if began <= one[0] <= ended]
    if len(batches) < 2:
        raise RuntimeError(f"fewer than two batches ended within {ended - began:.1f} s")
    rate = sum(rows for _, rows in batches[1:]) / (batches[-1][0] - batches[0][0])
    messages = rate * (ended - began)
    return {
        "rows_per_second": rate,
        "megabytes_per_second": rate * SIZE / 1e6,
        "batch_seconds": (batches[-1][0] - batches[0][0]) / (len(batches) - 1),
        "cpu_seconds_per_million": {role: 1e6 * used / messages for role, used in seconds.items()},
    }


def _batches(query: Any, before: int) -> list[tuple[float, int]]:
    """For each batch with rows, after the batch ``before``: when it ended, in seconds since 1970, and its rows."""
    return [
        (
            datetime.fromisoformat(one["timestamp"]).timestamp() + one["durationMs"]["triggerExecution"] / 1000,
            one["numInputRows"],
        )
        for one in query.recentProgress
        if one["numInputRows"] and one["batchId"] > before
    ]


def _spans(context: Context) -> dict[str, Any]:
    """Spans through a Collector that passes the answers on, into rows of spans."""
    context.progress("doors: spans through a Collector")
    port = lasting_port(range(1))
    try:
        program_ = telemetry.collector()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        context.say(f"  the Collector is left out: {error}")
        return {"error": str(error)}
    with (
        Installation(context, noop, rows=otel.spans, memoryBudget=BUDGET, cookie="", otlp_port=port) as installation,
        collector(program_, f"127.0.0.1:{port}", {}) as place,
    ):
        command = program("proving.bench.doors.span_clients", place=place, **SPANS, seconds=_seconds(context))
        run = _run(installation, command)
    found = {
        **SPANS,
        "spans_per_second": SPANS["spans"] * run["rows_per_second"],
        "batch_seconds": run["batch_seconds"],
    }
    context.say(f"  spans through a Collector: {found['spans_per_second']:,.0f}/s")
    return found


def _chains(context: Context) -> dict[str, Any]:
    """One producer, at one rate, into Kafka and Spark's Kafka source, and into the door."""

    def every_second(writer: Any) -> Any:
        return noop(writer).trigger(processingTime=f"{TRIGGER_SECONDS} seconds")

    context.progress("doors: Kafka's chain")
    ports = _ports()
    try:
        theirs = of_kafka(context, fetched_jars(context), SIZE, STEADY, ONE_PRODUCER)
        context.progress("doors: the same producer into the door")
        with Installation(context, every_second, memoryBudget=BUDGET, cookie="", **ports) as installation:
            bootstrap = f"127.0.0.1:{ports['kafka_port']}"
            ours = _run(installation, producing(bootstrap, SIZE, STEADY, START_SECONDS, ONE_PRODUCER))
        kept_up("the door", SIZE, ours["rows_per_second"], STEADY)
    except (RuntimeError, subprocess.SubprocessError) as error:
        context.say(f"  Kafka's chain is left out: {error}")
        return {"error": str(error)}
    found = {"rate": STEADY, "kafka": theirs, "door": ours, "of_kafka": total(ours) / total(theirs)}
    context.say(f"  the door takes {found['of_kafka']:.2f} of the processor time of Kafka's chain")
    return found


def _decoding(context: Context) -> list[dict[str, Any]]:
    """Record batches become rows as in a reading task; records a second of processor time."""
    context.progress("doors: decoding record batches")
    found = []
    for name, size in BATCHES.items():
        batches, records = record_batches(size, DECODED)
        rates = []
        for _ in range(context.lengths.windows):
            began = time.process_time()
            count = sum(rows.num_rows for rows in expand(batches, headers=False, corrupt=False))
            rates.append(count / (time.process_time() - began))
            assert count == records
        found.append({"batch": name, **Spread.of(rates).to_json()})
        context.say(f"  record batches of {name}: {found[-1]['median']:,.0f} records/s a core")
    return found


def record_batches(size: int, records: int) -> tuple[pa.RecordBatch, int]:
    """Rows of a buffer, each a record batch of at most ``size`` bytes; and how many records they have in all."""
    batches, ends, number = [], [], 0
    while number < records:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, size)
        offset = 0
        while builder.append(offset, 1_700_000_000_000 + offset, None, b"x" * SIZE, []) is not None:
            offset += 1
        number += offset
        batches.append(bytes(builder.build()))
        ends.append(number)
    count = len(batches)
    columns = {
        "instance": pa.repeat(pa.scalar("kafka/bench/0"), count),
        "stream": pa.repeat(pa.scalar("bench/3/-"), count),
        "stream_id": np.full(count, 7, np.int64),
        "message_id": np.array(ends, np.int64),
        "event_time": pa.nulls(count),
        "key": pa.nulls(count),
        "value": batches,
        "flags": np.zeros(count, np.int16),
        "received_at": np.zeros(count, np.int64),
    }
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in ROW_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=ROW_SCHEMA), number


def _memory(context: Context) -> dict[str, float]:
    """Resident memory of a worker without Spark and without any client, in MiB."""
    context.progress("doors: memory of a worker")
    found = {"none": 0.0, "all": 0.0}
    for name in found:
        found[name] = median(_resident({} if name == "none" else _ports()) for _ in range(MEMORY_REPETITIONS))
    context.say(f"  a worker without doors: {found['none']:.1f} MiB, with all of them: {found['all']:.1f} MiB")
    return found


def _resident(ports: dict[str, Any]) -> float:
    line = program("proving.bench.lone_worker", options=ports)
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], ANSWER_SECONDS)[0] or not process.stdout.readline():
            raise RuntimeError(f"a worker ended, or did not serve within {ANSWER_SECONDS:.0f} s")
        time.sleep(SETTLE_SECONDS)
        return memory(process.pid)[0]
    finally:
        end(process)
