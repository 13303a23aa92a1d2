"""What a running worker and a reading task tell people of Kafka's record batches."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.doors.kafka.batches import batch
from tests.doors.kafka.worlds import produce
from tests.waiting import SECONDS, eventually
from tests.worker.running import TOKEN, Running, fleet
from wallaroo_spark.doors.client import stream_id
from wallaroo_spark.inner.tap import tap
from wallaroo_spark.options import Options
from wallaroo_spark.references import PlannedRange, StreamKey
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.source.ranges import RangePartition, read_ranges

CLIENT = "kafka/billing/0"


@pytest.fixture
def worker(redis_server: EmbeddedRedis) -> Iterator[Running]:
    port = lasting_port()
    numbered: dict[str, Any] = {"producer": 7, "epoch": 0, "sequence": 0}
    with fleet(redis_server.url, cookie="", kafka_port=port, kafka_nodes=1) as made:
        running = made.start()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(produce(1, ("orders", 3, batch([b"a", b"b", b"c"], **numbered))))
            connection.sendall(produce(2, ("broken", 3, batch([None] * 5, records=bytes([255] * 40), **numbered))))
            eventually(lambda: running.count("door-messages") == 8, "the worker has both batches")
            yield running


def read(worker: Running, stream: str, last: int) -> list[bytes]:
    """What a reading task makes of a planned range."""
    options = Options(receiver="orders", token=TOKEN)
    planned = PlannedRange(StreamKey(CLIENT, stream_id(stream)), None, last)
    part = RangePartition(0, [planned], {0: worker.lease.flight}, options)
    batches = read_ranges(part, lambda: worker.registry)
    return [value for one in batches for value in one["value"].to_pylist()]


def test_a_batch_that_a_task_cannot_read_is_counted_and_shown_with_its_client_and_topic(worker: Running) -> None:
    assert read(worker, "orders/3/7", 3) == [b"a", b"b", b"c"]
    assert worker.count("unreadable-batches") == 0

    last = int(worker.client.inspect(10, CLIENT, str(stream_id("broken/3/7")))["stream_list"][0]["received"])
    assert read(worker, "broken/3/7", last) == []

    assert worker.count("unreadable-batches") == 1
    (shown,) = worker.client.inspect(10)["refusals"]
    assert (shown["kind"], shown["instance"], shown["peer"]) == ("kafka-unreadable", CLIENT, "")
    assert shown["reason"].startswith("topic broken, partition 3: ")


@pytest.mark.parametrize(
    ("stream", "instance"),
    [("orders", ""), ("*", "kafka/billing"), ("orders", CLIENT)],
    ids=["topic", "client", "session"],
)
def test_tap_shows_the_records_of_a_batch_by_their_topic(worker: Running, stream: str, instance: str) -> None:
    found = tap(lambda: {0: worker.lease.flight}, TOKEN, stream, instance=instance, cut=1, rate=100, seconds=SECONDS)
    tapped = [next(found) for _ in range(3)]

    assert [(one.instance, one.stream, one.stream_id, one.value, one.size) for one in tapped] == [
        ("kafka/billing", "orders", 3, value, 1) for value in (b"a", b"b", b"c")
    ]
