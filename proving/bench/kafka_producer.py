"""A Python program that produces to Kafka: ``python -m proving.bench.kafka_producer JSON``.

It prints a line of JSON when sending begins, and another with its count when it has ended, as it does when its standard
input ends.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from confluent_kafka import Producer

TICK_SECONDS = 0.005
LOOK_MESSAGES = 1000
MOST_QUEUED = 200_000
"""Messages that wait in the producer: with fewer it waits for the broker, and its process for itself."""


SETTINGS = {"linger.ms": 5, "batch.size": 1 << 20, "queue.buffering.max.messages": MOST_QUEUED, "acks": "1"}


def produce(
    bootstrap: str, topic: str, size: int, rate: float, seconds: float, settings: dict[str, Any] | None = None
) -> int:
    """Send messages of ``size`` bytes for so long, ``rate`` a second, 0 for as fast as it goes; how many.

    ``settings`` are the client's, beside its defaults.
    """
    settings = SETTINGS if settings is None else settings
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    payload, sent = b"x" * size, 0
    began = time.monotonic()
    print(json.dumps({"began": began}), flush=True)
    while (now := time.monotonic() - began) < seconds and not select.select([sys.stdin], [], [], 0)[0]:
        due = int(rate * now) - sent if rate else LOOK_MESSAGES
        if due <= 0:
            producer.poll(TICK_SECONDS)
            continue
        for _ in range(min(due, LOOK_MESSAGES)):
            try:
                producer.produce(topic, payload)
            except BufferError:
                producer.poll(TICK_SECONDS)
                break
            sent += 1
        producer.poll(0)
    producer.flush(30)
    return sent


if __name__ == "__main__":
    print(json.dumps({"sent": produce(**json.loads(sys.argv[1]))}), flush=True)
