"""Kafka and Spark's Kafka source beside this source, at the same rates, in the same run.

The broker and the source come from Maven, and PySpark 4.2, the newest one with such a source, from ``scripts/setup
oldest-pyspark``; all are fetched when the section is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Self

import pytest

from proving.bench.sections.endtoend import BUDGET
from proving.bench.stage import ROOT, SETTINGS, SLOTS, Context, Installation, noop, per_million
from proving.bench.usage import below, processes
from proving.processes import end
from proving.servers.kafka import KafkaServer
from proving.servers.packages.maven import fetched

STEADY = {100: 200_000.0, 1024: 50_000.0}
"""Messages a second that both chains take on two cores."""
TRIGGER_SECONDS = 1.0
"""The interval of the batches at a steady rate, the same for both chains, so that both pay for as many batches."""
BATCH_ROWS = {100: 400_000, 1024: 100_000}
"""The most rows of a batch of Kafka's source that takes as much as it can; ours are limited by the worker's buffer."""
CAUGHT_UP = 1.3
"""A batch of more rows than this times the steady rate still reads rows that were sent before the source was warm."""
WARM_BATCHES = 3
"""Batches in a row that have caught up, before anything is measured."""
MOST_OFF = 0.2
"""A chain whose rate differs by more than this share from the steady rate did not keep up with it."""
SOURCE = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", True)
PYSPARK = ROOT / ".venv" / "pyspark-4.2"
IN_SPARK_ALREADY = ("org.scala-lang", "org.slf4j", "org.apache.hadoop", "org.xerial.snappy")
BROKER_JAVA = ("-Xmx1g", "-Xms256m", "-XX:+UseG1GC", "-Dlog4j2.level=WARN")
"""As a broker that stays is run: its code is compiled well."""
START_SECONDS = 120.0
SETUP_SECONDS = 900.0
SDK, ENCODED = "proving.bench.sections.sdk", "proving.bench.load_generator"


def measure(context: Context) -> dict[str, Any]:
    """For each size: a steady rate and as fast as it goes, Kafka's chain and then this one."""
    jars = fetched_jars(context)
    cases = []
    for size, steady in STEADY.items():
        for rate in (steady, 0.0):
            named = f"{rate:,.0f} msg/s" if rate else "as fast as it goes"
            context.progress(f"Kafka: {size} B, {named}")
            theirs = of_kafka(context, jars, size, rate)
            context.progress(f"Kafka: this source beside it, {size} B, {named}")
            ours = {name: _ours(context, module, size, rate) for name, module in (("SDK", SDK), ("encoded", ENCODED))}
            cases.append({"size": size, "rate": rate, "kafka": theirs, **ours})
            context.say(_said(cases[-1]))
    return {"cases": cases}


def total(one: dict[str, Any]) -> float:
    """CPU seconds a million messages of everything."""
    return float(sum(one["cpu_seconds_per_million"].values()))


def _said(case: dict[str, Any]) -> str:
    return f"  {case['size']} B, {case['rate']:,.0f}: " + "; ".join(
        f"{name} {case[name]['messages_per_second']:,.0f} msg/s, {total(case[name]):.2f} CPU s a million"
        for name in ("kafka", "SDK", "encoded")
    )


def fetched_jars(context: Context) -> str:
    """The jars of the source; PySpark of its version is there too afterwards. Raises RuntimeError."""
    context.progress("Kafka: fetching the broker, the source and PySpark 4.2")
    try:
        folder = fetched("spark-kafka", SOURCE, without=IN_SPARK_ALREADY)
    except pytest.skip.Exception as error:
        raise RuntimeError(str(error)) from None
    if not PYSPARK.is_dir():
        setup = [str(ROOT / "scripts" / "setup"), "oldest-pyspark"]
        subprocess.run(setup, check=True, timeout=SETUP_SECONDS, stdout=subprocess.DEVNULL)
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _ours(context: Context, module: str, size: int, rate: float) -> dict[str, Any]:
    def sink(writer: Any) -> Any:
        return noop(writer).trigger(processingTime=f"{TRIGGER_SECONDS} seconds") if rate else noop(writer)

    with Installation(context, sink, memoryBudget=BUDGET) as installation:
        run = installation.run(module, size=size, rate=rate)
    kept_up("this source", size, run["messages"] / run["wall"], rate)
    if rate:
        # A window ends in the middle of a batch, so the acknowledged messages of few batches are not exact.
        run["messages"] = rate * run["wall"]
    return {"messages_per_second": run["messages"] / run["wall"], "cpu_seconds_per_million": per_million(run)}


def kept_up(chain: str, size: int, found: float, rate: float) -> None:
    """Raise RuntimeError for a chain that had another rate than it was to have."""
    if rate and abs(found / rate - 1) > MOST_OFF:
        raise RuntimeError(
            f"{chain}, {size} B: {found:,.0f} of {rate:,.0f} messages a second; the machine is overloaded"
        )


def of_kafka(
    context: Context, jars: str, size: int, rate: float, settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Kafka's chain at a rate, 0 for as fast as it goes; ``settings`` are those of the producer."""
    lengths = context.lengths
    try:
        broker = KafkaServer(BROKER_JAVA)
    except pytest.skip.Exception as error:
        raise RuntimeError(str(error)) from None
    with contextlib.ExitStack() as last:
        last.callback(broker.remove)
        broker.start()
        broker.create("bench", partitions=2)
        checkpoint = context.directory / f"kafka-{time.monotonic_ns()}"
        query = last.enter_context(
            Child(
                program(
                    "proving.bench.kafka_query",
                    jars=jars,
                    bootstrap=broker.bootstrap,
                    topic="bench",
                    checkpoint=str(checkpoint),
                    settings={**SETTINGS, "spark.master": f"local[{SLOTS}]"},
                    trigger_seconds=TRIGGER_SECONDS if rate else 0.0,
                    most_rows=0 if rate else BATCH_ROWS[size],
                ),
                f"{PYSPARK}{os.pathsep}{ROOT}",
            )
        )
        query.await_lines(bool, START_SECONDS)
        seconds = START_SECONDS + lengths.warm_up + lengths.measured
        producer = last.enter_context(Child(producing(broker.bootstrap, size, rate, seconds, settings)))
        producer.await_lines(bool, START_SECONDS)
        parts = {"broker": broker.pid, "Spark": query.pid, "producer": producer.pid}
        query.await_lines(lambda lines: _warm(lines, rate), START_SECONDS)
        time.sleep(lengths.warm_up)
        began, before = time.monotonic(), {name: _seconds(pid) for name, pid in parts.items()}
        time.sleep(lengths.measured)
        ended, after = time.monotonic(), {name: _seconds(pid) for name, pid in parts.items()}
        ends = _batch_ends([(one["at"], one["rows"]) for one in query.lines[1:] if began <= one["at"] <= ended])
    if len(ends) < 2:
        raise RuntimeError(f"Kafka, {size} B: fewer than two batches ended within {ended - began:.1f} s")
    (first, low), (final, high) = ends[0], ends[-1]
    messages = (high - low) / (final - first) * (ended - began)
    kept_up("Kafka", size, messages / (ended - began), rate)
    return {
        "messages_per_second": messages / (ended - began),
        "cpu_seconds_per_million": {name: 1e6 * (after[name] - before[name]) / messages for name in parts},
    }


def _warm(lines: list[dict[str, Any]], rate: float) -> bool:
    """Whether the last batches had rows, and no more than a steady rate brings: nothing is left from before them."""
    batches = [rows for _, rows in sorted({one["batch"]: one["last"] for one in lines if one.get("last")}.items())]
    most = CAUGHT_UP * rate * TRIGGER_SECONDS if rate else float("inf")
    return len(batches) >= WARM_BATCHES and all(rows <= most for rows in batches[-WARM_BATCHES:])


def _batch_ends(points: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """The points at which a batch has just ended."""
    return [now for before, now in pairwise(points) if now[1] > before[1]]


def _seconds(pid: int) -> float:
    """Processor time of a process and of all below it."""
    found = processes()
    return sum(one.own for one in [*([found[pid]] if pid in found else []), *below(found, pid)])


def program(module: str, **given: Any) -> list[str]:
    """The command line of a program of the bench."""
    return [sys.executable, "-m", module, json.dumps(given)]


def producing(
    bootstrap: str, size: int, rate: float, seconds: float, settings: dict[str, Any] | None = None
) -> list[str]:
    """The command line of a producer; see :func:`proving.bench.kafka_producer.produce`."""
    given = {"bootstrap": bootstrap, "topic": "bench", "size": size, "rate": rate, "seconds": seconds}
    return program("proving.bench.kafka_producer", **given, settings=settings)


class Child:
    """A program with a pipe to its end: it prints lines of JSON, and ends when its input does, or by a signal."""

    def __init__(self, command: Sequence[str], path: str = str(ROOT)) -> None:
        self.lines: list[dict[str, Any]] = []
        self._name = " ".join(command[:3])
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
            text=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._reader.join(5)

    def kill(self) -> None:
        """End a program that its input does not end."""
        self._process.kill()

    def await_lines(self, wanted: Callable[[list[dict[str, Any]]], object], seconds: float) -> None:
        """Wait until its lines are as wanted. Raises :class:`RuntimeError` when they are not in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: wanted(self.lines), seconds):
                code = self._process.poll()
                raise RuntimeError(f"{self._name} did not get there within {seconds:.0f} s; its exit code: {code}")

    def _read(self) -> None:
        for found in _objects(self._process):
            with self._changed:
                self.lines.append(found)
                self._changed.notify_all()


def _objects(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        with contextlib.suppress(ValueError):
            yield json.loads(line)
