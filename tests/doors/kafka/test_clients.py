"""Real clients, unchanged but for the address, against the package's own worker on real ports."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaProducer

from proving.producers.python_clients import CLIENTS
from tests.doors.kafka.clients import IDEMPOTENT, send
from tests.pems import make_pems
from tests.waiting import SECONDS, eventually
from wallaroo_spark.doors.kafka.rows import expand
from wallaroo_spark.options import Options
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.testing.fake_worker import FakeWorker

RECORDS = 2000
VALUES = [b"%d" % number for number in range(RECORDS)]


@contextmanager
def running(**options: Any) -> Iterator[tuple[FakeWorker, str]]:
    """A worker with the door, and what clients put into bootstrap.servers."""
    port = lasting_port(range(4))
    with FakeWorker(kafka_port=port, **options) as worker:
        yield worker, f"127.0.0.1:{port}"


def committed(worker: FakeWorker) -> list[dict[str, Any]]:
    """The rows that Spark would have, of all committed batches."""
    rows = [
        part
        for batch in worker.committed.to_batches()
        for part in expand(batch, headers=True, corrupt=True)
        if batch.num_rows
    ]
    return pa.Table.from_batches(rows).to_pylist() if rows else []


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_its_own_defaults_is_answered_when_committed(client: str) -> None:
    with running() as (worker, servers), worker.committing():
        offsets = send(client, servers, "orders", RECORDS)
    rows = committed(worker)
    assert Counter(row["value"] for row in rows) == Counter(VALUES)
    assert {row["instance"] for row in rows} == {"kafka/billing"}
    assert {row["stream"] for row in rows} == {"orders"}
    places = {(row["stream_id"], row["message_id"]) for row in rows}
    assert len(places) == len(VALUES)
    assert sorted(offsets) == sorted(offset for _, offset in places)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("client", CLIENTS)
def test_every_codec_of_a_client_is_read(client: str, codec: str) -> None:
    with running() as (worker, servers), worker.committing():
        send(client, servers, "orders", RECORDS, codec=codec)
    assert Counter(row["value"] for row in committed(worker)) == Counter(VALUES)


# kafka-python takes three quarters of a minute, most of it processor time of its own.
@pytest.mark.parametrize(
    "client", [pytest.param(one, marks=[pytest.mark.long] if one == "kafka-python" else []) for one in CLIENTS]
)
def test_a_killed_worker_loses_and_repeats_nothing_of_an_idempotent_producer(client: str) -> None:
    records = 8000
    answered: list[int] = []

    def produce(servers: str) -> None:
        for first in range(0, records, 1000):
            answered.extend(send(client, servers, "orders", 1000, IDEMPOTENT[client], first=first))

    with running() as (worker, servers):
        sender = threading.Thread(target=produce, args=(servers,))
        sender.start()
        for _ in range(3):
            worker.commit()
            worker.read()
            worker.crash()
        with worker.committing():
            sender.join(120)
    rows = committed(worker)
    assert Counter(int(row["value"]) for row in rows) == Counter(range(records))
    assert len(answered) == records
    by_partition: dict[int, list[int]] = {}
    for row in rows:
        by_partition.setdefault(row["stream_id"], []).append(int(row["value"]))
    assert all(sent == sorted(sent) for sent in by_partition.values())


def test_a_client_authenticates_itself_with_the_cookie_over_tls(tmp_path: Path) -> None:
    pems = make_pems(tmp_path)
    with (
        running(cookie="s3cret", tls_certificate=pems.server, tls_key=pems.server_key, tls_workers_ca=pems.ca) as (
            worker,
            servers,
        ),
        worker.committing(),
    ):
        send("confluent-kafka", servers, "orders", RECORDS, password="s3cret", ca=pems.ca)
    assert len(committed(worker)) == len(VALUES)


def test_key_headers_and_time_come_through() -> None:
    from confluent_kafka import Producer

    with running() as (worker, servers), worker.committing():
        producer = Producer({"bootstrap.servers": servers})
        producer.produce("orders", b"v", key=b"k", headers=[("a", b"1"), ("a", None)], partition=5, timestamp=1_700_000)
        producer.produce("orders", None, key=b"gone", partition=5)
        assert producer.flush(SECONDS) == 0
    first, second = committed(worker)
    assert (first["key"], first["value"], first["stream_id"], first["event_time"].timestamp()) == (b"k", b"v", 5, 1700)
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert (second["key"], second["value"], second["headers"]) == (b"gone", None, None)


def test_librdkafka_lists_all_topics() -> None:
    from confluent_kafka import Producer

    with running() as (_, servers):
        producer = Producer({"bootstrap.servers": servers})
        producer.list_topics("orders", timeout=SECONDS)
        assert set(producer.list_topics(timeout=SECONDS).topics) == {"orders"}


def test_a_transactional_producer_is_refused_at_once() -> None:
    from confluent_kafka import KafkaException, Producer

    with running() as (_, servers):
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
        begun = time.monotonic()
        with pytest.raises(KafkaException):
            producer.init_transactions(30)
        assert time.monotonic() - begun < 25


def test_a_request_that_spark_does_not_commit_in_time_is_sent_again_and_is_there_once() -> None:
    with running() as (worker, servers):
        offsets: list[int] = []
        sender = threading.Thread(
            target=lambda: offsets.extend(
                send(
                    "confluent-kafka",
                    servers,
                    "orders",
                    RECORDS,
                    {"enable.idempotence": True, "request.timeout.ms": 2000},
                )
            )
        )
        sender.start()
        worker.read()
        requests = _requests(worker)
        while _requests(worker) == requests:
            assert sender.is_alive()
            time.sleep(0.05)
        with worker.committing():
            sender.join(SECONDS)
    assert len(offsets) == len(VALUES)
    assert Counter(row["value"] for row in committed(worker)) == Counter(VALUES)


def test_the_next_record_batch_of_a_producer_is_there_for_the_next_plan_while_one_is_read() -> None:
    from confluent_kafka import Producer

    with running() as (worker, servers):
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "batch.num.messages": 1})
        for value in VALUES[:3]:
            producer.produce("orders", value, partition=5)
        eventually(lambda: _requests(worker) == 3)
        kept = worker.status()["unfinished_bytes"]
        for left in (kept // 2, 0, 0):
            assert worker.read().num_rows == 1
            assert worker.status()["unfinished_bytes"] == left
            worker.commit()
        assert producer.flush(SECONDS) == 0


def _requests(worker: FakeWorker) -> int:
    return int(worker.status()["counts"].get("door-requests", 0))


def test_a_batch_waits_for_longer_than_a_client_takes_to_connect_again() -> None:
    # The client with the longest pause between two tries, which it lengthens by up to a fifth.
    pause = 1.2 * KafkaProducer.DEFAULT_CONFIG["reconnect_backoff_max_ms"] / 1000
    options = Options(receiver="orders")
    assert pause < options.door_replay_timeout <= options.replay_timeout / 2
