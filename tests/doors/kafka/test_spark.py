"""Kafka's producers into a real query: a worker killed, the query and the receiver started again."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from proving.processes import descendants, listeners
from proving.producers.load import Load
from proving.producers.python_clients import CLIENTS
from tests.doors.kafka.clients import IDEMPOTENT
from tests.waiting import eventually
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry.embedded import lasting_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUES = 4000
RATE = 200
"""Values of each producer a second, so that each sends from before the kill until after the second start."""
PATIENT: dict[str, dict[str, Any]] = {"aiokafka": {"request_timeout_ms": 120_000}}
"""By itself aiokafka gives up a record that has no leader for 40 s; the others wait two minutes."""


class _Producers:
    """A producer of each client, with a topic of its own, that sends until all is answered."""

    def __init__(self, servers: str) -> None:
        self.answered: Counter[str] = Counter()
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(client, servers)) for client in CLIENTS]
        for thread in self._threads:
            thread.start()

    def _run(self, client: str, servers: str) -> None:
        def answered(number: int, offset: int) -> None:
            self.answered[client] += 1

        def failed(number: int, reason: object) -> None:
            self.failures.append(f"{client}: {number}: {reason}")

        load = Load(servers, client, "billing", 0, VALUES, rate=RATE, key="")
        try:
            CLIENTS[client](load, answered, failed, IDEMPOTENT[client] | PATIENT.get(client, {}))
        except BaseException as error:
            self.failures.append(f"{client}: {error!r}")

    def join(self) -> None:
        for thread in self._threads:
            thread.join(200)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.failures == []


def _save(rows: DataFrame, number: int, table: Path) -> None:
    rows.write.mode("overwrite").parquet(str(table / f"batch={number}"))


@pytest.mark.timeout(280)
def test_nothing_is_lost_or_repeated_when_a_worker_is_killed_and_the_receiver_starts_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    port, table = lasting_port(range(4)), tmp_path / "table"
    options: dict[str, Any] = {
        "workers": 2, "kafka_port": port, "kafka_nodes": 2, "lease_seconds": 3, "include_headers": True,
        # A client that comes back late finds its records still waited for; what is given up is for other tests.
        "replay_timeout": 400, "door_replay_timeout": 200,
    }  # fmt: skip

    def start(receiver: Receiver) -> Any:
        writer = receiver.kafka_stream().writeStream.foreachBatch(lambda rows, number: _save(rows, number, table))
        return receiver.start(writer, checkpoint=str(tmp_path / "checkpoint"))

    with Receiver(spark, "orders", **options) as receiver:
        start(receiver)
        producers = _Producers(f"127.0.0.1:{port}")
        eventually(lambda: sum(producers.answered.values()) >= 500, seconds=60)
        (pid,) = listeners(port + 2, descendants(os.getpid()))
        os.kill(pid, signal.SIGKILL)
        # The end of a receiver waits for its last batch, and that for the rows of the dead worker. Where no other has
        # taken its place, it takes half a minute, and aiokafka gives a record up after 40 s without a leader.
        eventually(lambda: receiver.status().slots[1].submissions == 2 and receiver.status().slots[1].answers)
        answered = sum(producers.answered.values())
        eventually(lambda: sum(producers.answered.values()) > answered, seconds=60)
    with Receiver(spark, "orders", **options) as receiver:
        start(receiver)
        producers.join()
    rows = spark.read.parquet(str(table)).collect()
    assert producers.answered == dict.fromkeys(CLIENTS, VALUES)
    found = Counter((row.topic, bytes(row.value)) for row in rows)
    wanted = Counter((client, b"%d" % number) for client in CLIENTS for number in range(VALUES))
    assert found == wanted
    assert {row.timestampType for row in rows} == {0}
    assert {field.name for field in spark.read.parquet(str(table)).schema} == {
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", "batch"
    }  # fmt: skip
