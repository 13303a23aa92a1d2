"""The catalog of topics in Redis: each topic's description, its publishers' addresses and their progress.

Keys of one topic have its name in the hash tag. They stand beside the keys of the topic's :class:`Registry`, which
holds its leases and its lock:

- ``wallaroo:{topic:NAME}:record``       JSON of a :class:`TopicRecord`, expiring
- ``wallaroo:{topic:NAME}:standing:P``   JSON of a :class:`PublisherProgress` of partition P, expiring

None of this is durable: the driver and the publishers write it again several times within each lease. Source:
``docs/pubsub.md#following-a-topic``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.registry import Registry
from wallaroo_spark.registry.connection import RedisConnection

T = TypeVar("T")

LEASE_SECONDS = 10.0
"""Default length of a lease, and lifetime of the entries here, in seconds.

A choice: it bounds the time without service after a publisher dies; a third of it is the interval of renewal.
"""


@dataclass(frozen=True)
class TopicRecord:
    """The description of a topic."""

    name: str
    partitions: int
    """Number of publishers."""
    identity: str
    """Identity of its history. Epochs of different histories are not related."""
    product: bool
    """Whether times are pairs (batch, value of a column)."""
    schema: bytes
    """Schema of the rows as an Arrow IPC message; empty before the first publication."""
    owner: str
    """Name of the driver that runs the topic."""

    def to_json(self) -> str:
        """Encode the record as its value in Redis."""
        return json.dumps({**vars(self), "schema": base64.b64encode(self.schema).decode()})

    @classmethod
    def from_json(cls, text: str) -> TopicRecord:
        """Decode a value from Redis. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(text)
        return cls(
            name=str(values["name"]),
            partitions=int(values["partitions"]),
            identity=str(values["identity"]),
            product=bool(values["product"]),
            schema=base64.b64decode(values["schema"]),
            owner=str(values["owner"]),
        )


@dataclass(frozen=True)
class PublisherProgress:
    """The progress of a partition's publisher."""

    newest: int | None = None
    """The newest batch that it may send; None before the first."""
    subscribers: int = 0
    """Number of its subscribers."""

    @classmethod
    def from_json(cls, text: str) -> PublisherProgress:
        """Decode a value from Redis. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(text)
        newest = values["newest"]
        return cls(None if newest is None else int(newest), int(values["subscribers"]))


@dataclass(frozen=True)
class ServedPartition:
    """The current publisher of a partition."""

    address: str
    """``host:port`` of the publisher."""
    progress: PublisherProgress = PublisherProgress()
    """The publisher's progress, as it has last reported it."""


def checked_name(name: str) -> str:
    """Return the name if it is valid; it becomes part of file names. Raises :class:`ConfigurationError` otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}", name):
        raise ConfigurationError(
            f"topic name {name!r}: use 1 to 100 letters, digits, dots, dashes and underscores, and no dot in front",
            code="name-invalid",
            name=name,
        )
    return name


def leases_of(url: str, name: str, lease_seconds: float = LEASE_SECONDS, attempts: int = 5) -> Registry:
    """The registry of one topic: a lease for each partition, and the lock of the driver that runs the topic."""
    return Registry(url, f"topic:{checked_name(name)}", lease_seconds=lease_seconds, attempts=attempts)


class TopicCatalog:
    """All topics in a Redis. Thread-safe; every call blocks and may raise :class:`RegistryError`.

    ``url`` is the registry's URL; ``lease_seconds`` is the lifetime of the entries, unless they are written again.
    """

    def __init__(self, url: str, *, lease_seconds: float = LEASE_SECONDS, attempts: int = 5) -> None:
        self._url = url
        self._lease_seconds = lease_seconds
        self._attempts = attempts
        self._milliseconds = max(1, round(lease_seconds * 1000))
        self._connection = RedisConnection(url, attempts=attempts, timeout=min(3.0, max(0.5, lease_seconds / 3)))
        self._leases: dict[str, Registry] = {}

    def __repr__(self) -> str:
        return f"TopicCatalog({self._connection.endpoint!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()
        for registry in self._leases.values():
            registry.close()

    def announce(self, record: TopicRecord) -> None:
        """Publish the description of a topic; it replaces the previous one.

        Only the driver that holds the topic's lock may call it.
        """
        self._set(f"announce topic {record.name!r}", _key(record.name, "record"), record.to_json())

    def withdraw(self, name: str) -> None:
        """Delete the description of a topic that has ended."""
        self._connection.call(f"withdraw topic {name!r}", lambda: self._connection.client.delete(_key(name, "record")))

    def find(self, name: str) -> TopicRecord | None:
        """The description of a topic; None if no driver runs a topic of that name."""
        return self._get(f"look up topic {name!r}", _key(checked_name(name), "record"), TopicRecord.from_json)

    def names(self) -> list[str]:
        """The names of all running topics, sorted."""
        front, end = _key("*", "record").split("*")
        return self._connection.names_between("list the topics", front, end)

    def report(self, name: str, partition: int, progress: PublisherProgress) -> None:
        """Publish the progress of a partition's publisher."""
        self._set(f"report on topic {name!r}", _key(name, f"standing:{partition}"), json.dumps(vars(progress)))

    def served(self, name: str) -> dict[int, ServedPartition]:
        """The current publishers of a topic by partition, without partitions that have none."""
        if name not in self._leases:
            self._leases[name] = leases_of(self._url, name, self._lease_seconds, self._attempts)
        leases = self._leases[name].leases().items()
        return {
            part: ServedPartition(lease.connect, self._progress(name, part)) for part, lease in leases if lease.connect
        }

    def _progress(self, name: str, partition: int) -> PublisherProgress:
        key = _key(name, f"standing:{partition}")
        return self._get(f"look up topic {name!r}", key, PublisherProgress.from_json) or PublisherProgress()

    def _set(self, action: str, key: str, text: str) -> None:
        self._connection.call(action, lambda: self._connection.client.set(key, text, px=self._milliseconds))

    def _get(self, action: str, key: str, reader: Callable[[str], T]) -> T | None:
        text: Any = self._connection.call(action, lambda: self._connection.client.get(key))
        return None if text is None else self._connection.parse(action, reader, str(text), f"the key {key}")


def _key(name: str, kind: str) -> str:
    return f"wallaroo:{{topic:{name}}}:{kind}"
