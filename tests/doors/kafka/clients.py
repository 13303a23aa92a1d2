"""Kafka's clients with their own defaults, as one interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

Send = Callable[[str, str, Sequence[bytes]], list[int]]
"""Sends values to a topic of the servers, waits for all answers, and returns the offsets."""


def with_confluent(servers: str, topic: str, values: Sequence[bytes], **settings: Any) -> list[int]:
    """confluent-kafka, which is librdkafka."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "client.id": "billing", **settings})
    offsets: list[int] = []
    errors: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(60)
    assert (left, errors) == (0, [])
    return offsets


def with_kafka_python(servers: str, topic: str, values: Sequence[bytes], **settings: Any) -> list[int]:
    """kafka-python."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers, client_id="billing", **settings)
    try:
        sent = [producer.send(topic, value) for value in values]
        return [one.get(60).offset for one in sent]
    finally:
        producer.close(5)


def with_aiokafka(servers: str, topic: str, values: Sequence[bytes], **settings: Any) -> list[int]:
    """aiokafka."""
    from aiokafka import AIOKafkaProducer

    async def run() -> list[int]:
        producer = AIOKafkaProducer(bootstrap_servers=servers, client_id="billing", **settings)
        await producer.start()
        try:
            sent = [await producer.send(topic, value) for value in values]
            return [(await one).offset for one in sent]
        finally:
            await producer.stop()

    return asyncio.run(run())


CLIENTS = {"confluent-kafka": with_confluent, "kafka-python": with_kafka_python, "aiokafka": with_aiokafka}
IDEMPOTENT: dict[str, dict[str, Any]] = {
    "confluent-kafka": {"enable.idempotence": True},
    "kafka-python": {},
    "aiokafka": {"enable_idempotence": True},
}
"""What makes a client number its batches. kafka-python does so by default."""


def compressing(client: str, codec: str) -> dict[str, Any]:
    """The setting of a client for a codec."""
    return {"compression.type" if client == "confluent-kafka" else "compression_type": codec}
