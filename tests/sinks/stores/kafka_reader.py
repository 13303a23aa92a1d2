"""The records of a topic for a consumer that reads only committed ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

READ_SECONDS = 60.0


def records(bootstrap: str, topic: str, *, settled: bool = True) -> list[Message]:
    """All records of a topic that are committed, in the order of its partitions.

    ``settled`` waits until no transaction is open there: a commit is answered a moment before consumers see it.
    """
    everything = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    committed = {
        **everything,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,
    }
    everything |= {"isolation.level": "read_uncommitted"}
    with closing(Consumer(everything)) as open_too, closing(Consumer(committed)) as consumer:
        found: list[Message] = []
        for partition in sorted(consumer.list_topics(topic, timeout=READ_SECONDS).topics[topic].partitions):
            place = TopicPartition(topic, partition, 0)
            _, end = open_too.get_watermark_offsets(place, READ_SECONDS)
            found += _read(consumer, place, end if settled else 0)
        return found


def _read(consumer: Consumer, place: TopicPartition, end: int) -> Iterator[Message]:
    """The records up to the last stable offset, which must be ``end`` or greater."""
    consumer.assign([place])
    deadline = time.monotonic() + READ_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif (message.offset() or 0) >= end:
            return
    raise AssertionError(f"{place} did not settle within {READ_SECONDS} s")
