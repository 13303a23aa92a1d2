"""Python's Kafka clients within a test's own process, with settings beside their defaults."""

from __future__ import annotations

from typing import Any

from proving.producers.load import Load
from proving.producers.python_clients import CLIENTS

IDEMPOTENT: dict[str, dict[str, Any]] = {
    "confluent-kafka": {"enable.idempotence": True},
    "kafka-python": {},
    "aiokafka": {"enable_idempotence": True},
}
"""What makes a client number its batches. kafka-python does so by default."""


def send(
    client: str,
    servers: str,
    topic: str,
    count: int,
    settings: dict[str, Any] | None = None,
    *,
    first: int = 0,
    codec: str = "",
    password: str = "",
    ca: str = "",
) -> list[int]:
    """Send the numbers from ``first`` on to a topic, wait for all answers, and return the offsets."""
    offsets: list[int] = []
    failures: list[tuple[int, object]] = []
    CLIENTS[client](
        Load(servers, topic, "billing", first, count, codec=codec, password=password, ca=ca, key=""),
        lambda _, offset: offsets.append(offset),
        lambda number, reason: failures.append((number, reason)),
        settings or {},
    )
    if failures:
        shown = "; ".join(f"{number}: {reason}" for number, reason in failures[:3])
        raise AssertionError(f"{client} gave up {len(failures)} of {count} records: {shown}")
    return offsets
