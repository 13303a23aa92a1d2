"""The records of a Kafka topic, from a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from proving.servers.kafka import KafkaServer
from tests.bridges.support import Bridging, numbers, refused
from tests.sinks.conftest import kafka, running
from tests.waiting import SECONDS, eventually
from wallaroo_spark.bridges.bridge import position_of
from wallaroo_spark.testing import FakeWorker

__all__ = ["kafka"]


class Topic:
    """A topic of the test's own."""

    def __init__(self, server: KafkaServer, partitions: int = 1) -> None:
        self.server = server
        self.name = f"orders-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": server.bootstrap})
        server.create(self.name, partitions, max_message_bytes="8000000")

    def produce(self, *records: bytes | None, partition: int = 0, **more: Any) -> None:
        """Produce, and wait until the broker has all of them."""
        producer = Producer({"bootstrap.servers": self.server.bootstrap, "message.max.bytes": 8_000_000})
        self._produce(producer, records, partition, more)

    def produce_within(self, end: str, *records: bytes) -> None:
        """Produce in a transaction, and ``commit`` or ``abort`` it."""
        identity = {"transactional.id": f"{self.name}-{uuid.uuid4().hex}"}
        producer = Producer({"bootstrap.servers": self.server.bootstrap, **identity})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        self._produce(producer, records, 0, {})
        getattr(producer, f"{end}_transaction")(SECONDS)

    def _produce(self, producer: Producer, records: Sequence[bytes | None], partition: int, more: Any) -> None:
        for one in records:
            producer.produce(self.name, one, partition=partition, **more)
        assert not producer.flush(SECONDS)

    def make_again(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(SECONDS)
        eventually(lambda: self.name not in self.admin.list_topics(timeout=SECONDS).topics)
        self.server.create(self.name)

    def delete_before(self, offset: int) -> None:
        place = TopicPartition(self.name, 0, offset)
        self.admin.delete_records([place])[place].result()

    def source(self, *options: str) -> tuple[str, ...]:
        return ("kafka", self.server.bootstrap, self.name, *options)


@pytest.fixture
def topic(kafka: KafkaServer) -> Topic:
    return Topic(kafka)


def rows(worker: FakeWorker, stream: str) -> list[dict[str, Any]]:
    return [one for one in worker.committed.to_pylist() if one["stream"] == stream]


def test_records_are_sent_once_although_the_bridge_is_killed(topic: Topic, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *topic.source("--group", topic.name))
    topic.produce(*numbers(0, 1000), key=b"k", timestamp=1_700_000_000_123)
    topic.produce_within("abort", b"aborted")
    topic.produce_within("commit", *numbers(1000, 1010))
    topic.produce(None, b"")
    bridging.killed_before_the_commit(100)
    with bridging.again():
        bridging.wait(1012)
        topic.admin.create_partitions([NewPartitions(topic.name, 2)])[topic.name].result(SECONDS)
        topic.produce(b"added", partition=1)
        bridging.wait(1013)

        found = rows(worker, f"{topic.name}/0")
        assert [one["value"] for one in found] == [*numbers(0, 1010), b"", b""]
        # The aborted record, its marker and that of the commit have offsets too.
        assert [position_of(one["message_id"]) for one in found[999:1011]] == [999, *range(1002, 1012), 1013]
        assert (found[0]["key"], found[-1]["key"]) == (b"k", None)
        assert found[0]["event_time"].timestamp() == 1_700_000_000.123
        assert [one["value"] for one in rows(worker, f"{topic.name}/1")] == [b"added"]
        # Who watches the group's lag sees what is committed.
        place = TopicPartition(topic.name, 0)
        group = Consumer({"bootstrap.servers": topic.server.bootstrap, "group.id": topic.name})
        eventually(lambda: group.committed([place], SECONDS)[0].offset == 1015, bridging.output)
        group.close()


def test_latest_keeps_its_beginning_when_a_worker_is_lost_before_the_first_commit(
    topic: Topic, worker: FakeWorker, tmp_path: Path
) -> None:
    topic.produce(b"former")
    bridging = Bridging(worker, tmp_path, *topic.source("--begin", "latest"))
    with bridging.running():
        eventually(lambda: (topic.produce(b"begun"), worker.status()["memory_used"])[1], pause=0.3)
        topic.produce(*numbers(0, 10))
        worker.read(11)
        worker.crash()
        topic.produce(*numbers(10, 11))
        with worker.committing():
            eventually(lambda: bridging.values()[-1:] == numbers(10, 11), bridging.output)

    assert b"former" not in bridging.values()
    assert bridging.values()[-11:] == numbers(0, 11)


def test_a_topic_that_is_made_again_is_refused(topic: Topic, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *topic.source())
    topic.produce(b"a", b"b")
    with bridging.running() as process, worker.committing():
        bridging.wait(2)
        topic.make_again()
        topic.produce(*numbers(0, 5))
        # While it runs as well as when it is started: with more records than were committed of the former topic.
        assert process.wait(SECONDS) == 1
    assert f"partition 0 of the Kafka topic '{topic.name}' was deleted and made again" in bridging.output

    with worker.committing():
        assert refused(bridging).count("was deleted and made again") == 2
    assert bridging.values() == [b"a", b"b"]


@pytest.mark.long
def test_records_that_retention_has_deleted_are_refused_or_skipped(
    topic: Topic, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *topic.source())
    topic.produce(*numbers(0, 10))
    with bridging.running(), worker.committing():
        bridging.wait(10)
    topic.produce(*numbers(10, 20))
    topic.delete_before(15)
    with worker.committing():
        assert "begins at position 15, and is committed up to 9" in refused(bridging)
        skipping = Bridging(worker, tmp_path, *topic.source("--lost", "skip"))
        with skipping.running():
            skipping.wait(15)
    assert bridging.values() == [*numbers(0, 10), *numbers(15, 20)]


@pytest.mark.long
def test_a_record_that_no_frame_can_carry_is_named(topic: Topic, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *topic.source())
    topic.produce(b"a", bytes(5_000_000))
    with worker.committing():
        assert "[frame-too-long]" in refused(bridging)


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """A broker that the test may kill."""
    yield from running(KafkaServer())


@pytest.mark.long
def test_a_broker_that_is_killed_is_read_on_when_it_is_back(
    own_kafka: KafkaServer, worker: FakeWorker, tmp_path: Path
) -> None:
    topic = Topic(own_kafka)
    bridging = Bridging(worker, tmp_path, *topic.source())
    topic.produce(*numbers(0, 10))
    with bridging.running(), worker.committing():
        bridging.wait(10)
        own_kafka.stop()
        eventually(lambda: f"'{topic.name}/0' does not answer" in bridging.output)
        own_kafka.start()
        topic.produce(*numbers(10, 20))
        bridging.wait(20)
        eventually(lambda: f"'{topic.name}/0' answers again" in bridging.output)
    assert bridging.values() == numbers(0, 20)
