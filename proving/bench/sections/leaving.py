"""Out of Spark: each transactional sink beside Spark's own Parquet files, and a topic with subscribers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from proving.bench.results.figures import Spread
from proving.bench.stage import ROOT, Context
from proving.servers.kafka import KafkaServer
from proving.servers.postgres import PostgresServer
from wallaroo_spark import pubsub, sinks
from wallaroo_spark.registry import EmbeddedRedis

ROWS = 100_000
"""Rows of a batch, each of about 100 B, in two partitions."""
BATCHES = 3
SUBSCRIBERS = 3
SUBSCRIBED_BATCHES = 12
PATIENCE_SECONDS = 120.0
COOKIE = "a cookie for this run"
ROW = "rpad(CAST(id AS STRING), 100, 'x')"

Write = Callable[[Any, int], None]


def leaving(context: Context) -> dict[str, Any]:
    """Rows a second into every sink, and from a topic to its subscribers."""
    return {"rows": ROWS, "sinks": list(_sinks(context)), "pubsub": _topic(context)}


def _sinks(context: Context) -> Iterator[dict[str, Any]]:
    frame = context.spark.range(ROWS).selectExpr(f"CAST({ROW} AS BINARY) AS value").repartition(2).persist()
    frame.count()
    checkpoint = context.directory / "sinks-checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}), encoding="utf-8")
    with contextlib.ExitStack() as servers:
        for name, make in _makers(context.directory, str(checkpoint), servers).items():
            context.progress(f"sinks: {name}")
            try:
                # The reference is measured again beside each sink, because the machine's speed changes.
                seconds = {"plain": _seconds(_plain(context), frame), "sink": _seconds(make(), frame)}
            except Exception as error:
                yield {"sink": name, "error": f"{type(error).__name__}: {error}"}
                continue
            rates = {key: Spread.of(ROWS / one for one in found) for key, found in seconds.items()}
            ratio = rates["sink"].middle / rates["plain"].middle
            yield {"sink": name, "rows_per_second": rates["sink"].to_json(), "of_plain_parquet": ratio}
            context.say(f"  {name:<12} {rates['sink'].middle:>12,.0f} rows/s, {ratio:.2f} of Spark's own Parquet")
    frame.unpersist()


def _makers(directory: Path, checkpoint: str, servers: contextlib.ExitStack) -> dict[str, Callable[[], Write]]:
    """A function for each sink that makes it with its server; servers end with the stack."""

    def started(server: Any) -> Any:
        servers.callback(server.remove)
        server.start()
        return server

    def postgres() -> Write:
        import psycopg

        dsn = started(PostgresServer()).dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE bench (value bytea)")
        return sinks.postgres(dsn, table="bench", checkpoint=checkpoint, name="postgres")

    def redis() -> Write:
        server = servers.enter_context(EmbeddedRedis())
        return sinks.redis(server.url, stream="bench", checkpoint=checkpoint, name="redis")

    def kafka() -> Write:
        server = started(KafkaServer())
        server.create("bench")
        return sinks.kafka(server.bootstrap, topic="bench", checkpoint=checkpoint, name="kafka")

    def connector() -> Write:
        address = servers.enter_context(_sink_server(directory / "sink"))
        return sinks.connector(address, checkpoint=checkpoint, name="connector")

    return {
        "files": lambda: sinks.files(str(directory / "files"), checkpoint=checkpoint, name="files"),
        "connector": connector,
        "PostgreSQL": postgres,
        "Redis": redis,
        "Kafka": kafka,
    }


@contextlib.contextmanager
def _sink_server(to: Path) -> Iterator[str]:
    """``wallaroo-spark sink`` as a process of its own, with its address."""
    command = [sys.executable, "-m", "wallaroo_spark.cli.main", "sink", "--to", str(to), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2].rstrip(",")
        finally:
            process.terminate()


def _plain(context: Context) -> Write:
    target = str(context.directory / f"plain-{time.monotonic_ns()}")
    return lambda frame, batch: frame.write.mode("append").parquet(target)


def _seconds(write: Write, frame: Any) -> list[float]:
    """The seconds of each batch except the first, which warms up."""
    found = []
    for batch in range(1 + BATCHES):
        began = time.monotonic()
        write(frame, batch)
        found.append(time.monotonic() - began)
    return found[1:]


def _topic(context: Context) -> dict[str, Any]:
    """A query that publishes as fast as it can, measured at its subscribers; and the same query into noop."""
    context.progress(f"pubsub: {SUBSCRIBERS} subscribers")
    checkpoint = str(context.directory / "topic-checkpoint")
    topic = pubsub.Topic(context.spark, "bench", checkpoint=checkpoint, partitions=1, cookie=COOKIE)
    with topic, contextlib.ExitStack() as last:
        readers = [last.enter_context(_subscriber(topic.registry_url)) for _ in range(SUBSCRIBERS)]
        found: list[list[float]] = []
        threads = [
            threading.Thread(target=lambda one=one: found.append(json.loads(one.stdout.readline() or "[]")))
            for one in readers
        ]
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.readline()
        for thread in threads:
            thread.start()
        with _query(context, topic.publish, checkpoint):
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
    plain: list[float] = []

    def into_noop(frame: Any, batch: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        plain.append(time.monotonic())

    with _query(context, into_noop, str(context.directory / "noop-checkpoint")):
        until = time.monotonic() + PATIENCE_SECONDS
        while len(plain) < SUBSCRIBED_BATCHES and time.monotonic() < until:
            time.sleep(0.05)
    rates, bare = [_rate(times) for times in found], _rate(plain)
    context.say(f"  pubsub       {median(rates):>12,.0f} rows/s to each of {SUBSCRIBERS}; into noop {bare:,.0f}")
    return {"subscribers": rates, "rows_per_second": median(rates), "noop": bare, "of_noop": median(rates) / bare}


def _rate(times: list[float]) -> float:
    """Rows a second from the second batch on; each batch has :data:`ROWS` rows."""
    return ROWS * (len(times) - 2) / (times[-1] - times[1])


@contextlib.contextmanager
def _query(context: Context, write: Write, checkpoint: str) -> Iterator[None]:
    source = context.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    rows = source.option("numPartitions", 2).load().selectExpr("value AS id").selectExpr(f"{ROW} AS value")
    ending = threading.Event()

    def until_the_end(frame: Any, batch: int) -> None:
        # A query that is stopped within a batch logs pages of stack traces.
        if not ending.is_set():
            write(frame, batch)

    query = rows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(until_the_end).start()
    try:
        yield
    finally:
        ending.set()
        query.stop()


@contextlib.contextmanager
def _subscriber(registry: str) -> Iterator[subprocess.Popen[str]]:
    """A process that prints a line when it is subscribed, and then one with the time of each complete epoch."""
    command = [sys.executable, "-m", "proving.bench.sections.leaving", registry]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def main(registry: str) -> None:
    """Follow the topic and print the time at which each epoch was complete."""
    times: list[float] = []
    with pubsub.subscribe("bench", registry=registry, cookie=COOKIE, wait=PATIENCE_SECONDS) as subscription:
        print("subscribed", flush=True)
        for _, table in subscription.epochs():
            assert table.num_rows == ROWS, table.num_rows
            times.append(time.monotonic())
            if len(times) == SUBSCRIBED_BATCHES:
                break
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
