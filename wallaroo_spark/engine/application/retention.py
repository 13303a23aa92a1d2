"""Deletes the records that are older than the ttl of their stream: first in the state of their key, then their files.

Source: ``docs/pipelines/engine.md#the-application``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from wallaroo_spark.engine.application.driver_inbox import DriverInbox
from wallaroo_spark.pipelines.controller.messages.events import Event, RecordsExpired
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.streams.inbox import DRIVER, InboxPosition


class ExpiringTables(Protocol):
    """The part of :class:`wallaroo_spark.streams.tables.mover.TableMover` that is needed here."""

    def expired(self, stream: str, partition: int, before: int) -> int | None:
        """The offset from which records are kept if those written before a time are deleted; None: nothing changes."""

    def expire(self, stream: str, partition: int, before: int) -> int:
        """Delete the files whose records are all before an offset."""


class Retention:
    """The expiry of an application's records. ``tables`` and ``inbox`` are the application's.

    Readers learn from the key's controller that records are gone. So a key is told first, and the files are deleted
    once the batch is committed in which the key has heard it. After a crash the same is found again.
    """

    def __init__(self, tables: ExpiringTables, inbox: DriverInbox) -> None:
        self._tables = tables
        self._inbox = inbox
        self._told: dict[PartitionKey, tuple[int, InboxPosition]] = {}

    def look(self, schema: StoredSchema, now: int, read: Mapping[str, InboxPosition]) -> None:
        """Delete the files of which the keys have heard, and tell keys of records that have expired since.

        ``now`` is in milliseconds since 1970 UTC; ``read`` are the positions in the inbox that a committed batch has
        reached. Raises :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read, written or deleted;
        the call can be repeated.
        """
        reached = read.get(DRIVER, InboxPosition())
        for key, (first, position) in list(self._told.items()):
            if reached >= position:
                self._tables.expire(key.stream, key.partition, first)
                del self._told[key]
        events: list[tuple[PartitionKey, Event]] = []
        firsts: dict[PartitionKey, int] = {}
        for key, ttl in _ttls(schema).items():
            expired = None if key in self._told else self._tables.expired(*key, now - round(ttl * 1000))
            if expired is not None:
                firsts[key] = expired
                events.append((key, RecordsExpired(expired)))
        if events:
            position = self._inbox.write(events)
            self._told.update({key: (first, position) for key, first in firsts.items()})


def _ttls(schema: StoredSchema) -> dict[PartitionKey, float]:
    """The partitions of the streams with a ttl, in seconds."""
    streams = [one for one in schema.objects.values() if isinstance(one, StreamDeclaration)]
    return {
        PartitionKey(one.key.path, number): one.ttl
        for one in streams
        if one.ttl is not None
        for number in range(one.partitions)
    }
