"""Kafka's producers into a real query: a worker killed, the query and the receiver started again."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proving.processes import descendants, listeners
from tests.doors.kafka.clients import IDEMPOTENT
from tests.doors.kafka.programs import Program, program
from tests.waiting import eventually
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry.embedded import lasting_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUES, RATE = 100_000, 100
"""More values of each producer than it is given time for, and how many a second."""
SOME = 100
"""Answers to each producer that show that records come through."""
PATIENT: dict[str, dict[str, Any]] = {"aiokafka": {"request_timeout_ms": 120_000}}
"""By itself aiokafka gives up a record that has no leader for 40 s; the others wait two minutes."""


def _save(rows: DataFrame, number: int, table: Path) -> None:
    rows.write.mode("overwrite").parquet(str(table / f"batch={number}"))


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_repeated_when_a_worker_is_killed_and_the_receiver_starts_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    port, table = lasting_port(range(4)), tmp_path / "table"
    options: dict[str, Any] = {
        "workers": 2, "kafka_port": port, "kafka_nodes": 2, "lease_seconds": 3, "include_headers": True,
    }  # fmt: skip

    def start(receiver: Receiver) -> Any:
        writer = receiver.kafka_stream().writeStream.foreachBatch(lambda rows, number: _save(rows, number, table))
        return receiver.start(writer, checkpoint=str(tmp_path / "checkpoint"))

    def program_of(client: str) -> AbstractContextManager[Program]:
        settings = IDEMPOTENT[client] | PATIENT.get(client, {})
        load = ["--first", "0", "--count", str(VALUES), "--rate", str(RATE), "--key", ""]
        return program(client, f"127.0.0.1:{port}", client, *load, "--settings", json.dumps(settings))

    def come_through() -> None:
        """Wait for answers to every producer."""
        wanted = {client: len(one.acked) + SOME for client, one in producers.items()}
        eventually(lambda: all(len(one.acked) >= wanted[client] for client, one in producers.items()), seconds=120)

    with ExitStack() as running:
        with Receiver(spark, "orders", **options) as receiver:
            start(receiver)
            producers = {client: running.enter_context(program_of(client)) for client in IDEMPOTENT}
            come_through()
            (pid,) = listeners(port + 2, descendants(os.getpid()))
            os.kill(pid, signal.SIGKILL)
            come_through()
        with Receiver(spark, "orders", **options) as receiver:
            start(receiver)
            come_through()
            for one in producers.values():
                one.process.terminate()
            for one in producers.values():
                one.join(120)
    rows = spark.read.parquet(str(table)).collect()
    assert {client: one.failed for client, one in producers.items()} == {client: {} for client in IDEMPOTENT}
    assert {client: sorted(one.acked) == [*range(len(one.acked))] for client, one in producers.items()} == (
        dict.fromkeys(IDEMPOTENT, True)
    )
    found = Counter((row.topic, bytes(row.value)) for row in rows)
    assert found == Counter((client, b"%d" % number) for client, one in producers.items() for number in one.acked)
    assert {row.timestampType for row in rows} == {0}
    assert {field.name for field in spark.read.parquet(str(table)).schema} == {
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "batch"
    }  # fmt: skip
