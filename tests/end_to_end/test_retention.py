"""A stream that ended is forgotten after ``streamRetention``, in the checkpoint and in the workers; open ones stay.

So is a producer of the Kafka door after ``kafka.producerRetention``, when it has sent nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from tests.receiver.support import COOKIE, Batches, Feeders, addresses
from tests.waiting import SECONDS, eventually
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def producer(port: int) -> Producer:
    """An idempotent producer of the Kafka door."""
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "billing"}
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "client.id": "billing", "enable.idempotence": True}
    # The door waits for twice this time for records of a forgotten producer that may be under way elsewhere.
    return Producer({**settings, **sasl, "sasl.password": COOKIE, "request.timeout.ms": 1000})


def newest_offset(checkpoint: Path) -> dict[str, Any]:
    batch = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    found: dict[str, Any] = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
    return found


def test_an_ended_stream_and_a_silent_producer_are_forgotten_and_begin_again_and_open_ones_go_on(
    spark: SparkSession, own_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    checkpoint, batches = tmp_path / "checkpoint", Batches()
    port = lasting_port(range(1))
    options: dict[str, Any] = {"registry": own_redis.url, "cookie": COOKIE, "lease_seconds": 2, "stream_retention": 1}
    options |= {"kafka_port": port, "kafka_nodes": 1, "kafka_producer_retention": 1}
    with Receiver(spark, "orders", workers=1, **options) as receiver:
        receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(checkpoint))
        busy = feeders.connect("busy", addresses(receiver)).open("open")
        shop = feeders.connect("shop", addresses(receiver))
        stream = shop.open("a")
        stream.send(b"one", id=1)
        stream.end()
        stream.flushed()
        assert "shop" in newest_offset(checkpoint)["streams"]
        shop.close()
        producers = [producer(port) for _ in range(2)]
        producers[0].produce("topic", b"two", partition=0)
        assert producers[0].flush(SECONDS) == 0
        (gone,) = newest_offset(checkpoint)["streams"]["kafka/billing/0"]

        def forgotten() -> bool:
            busy.send(b"x")
            producers[1].produce("topic", b"three", partition=1)
            assert producers[1].flush(SECONDS) == 0
            streams = newest_offset(checkpoint)["streams"]
            return "shop" not in streams and gone not in streams["kafka/billing/0"]

        eventually(forgotten)
        assert len(newest_offset(checkpoint)["streams"]["kafka/billing/0"]) == 1
        producers[0].produce("topic", b"four", partition=0)
        assert producers[0].flush(SECONDS) == 0
        again = feeders.connect("shop", addresses(receiver)).open("a")
        assert again.reference is None
        again.send(b"one", id=1)
        again.flushed()
        busy.flushed()
        assert newest_offset(checkpoint)["streams"]["shop"] == {str(again.id): 1}
    assert batches.values("a") == [b"one", b"one"]
    assert [value for value in batches.values("topic") if value != b"three"] == [b"two", b"four"]
