"""The driver's own inbox: events that no client has sent, among them those of retention.

Source: ``docs/pipelines/engine.md#files`` and ``docs/pipelines/engine.md#the-application``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from wallaroo_spark.pipelines.controller.messages.events import Event, GatewayStarted, RecordsExpired
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.inbox import DRIVER, SINK, InboxPosition, InboxReader, InboxWriter
from wallaroo_spark.streams.mover import TableMover


class DriverInbox:
    """Writes events of the driver. A generation begins with the first event. Thread-safe.

    ``folder`` is the application's folder, opened with the session ``spark``.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._writer = InboxWriter(folder, DRIVER, spark)
        self._usable = False
        self._lock = threading.Lock()

    def write(self, events: Sequence[tuple[PartitionKey, Event]]) -> InboxPosition:
        """Write events durably; return the position that a batch with all of them reaches.

        Raises :class:`wallaroo_spark.errors.CheckpointError` when they cannot be written.
        """
        with self._lock:
            if not self._usable:
                self._writer.open()
            # After an error only a new generation makes the writer usable.
            self._usable = False
            sequence = self._writer.write([(key, encode(event)) for key, event in events])
            self._usable = True
            return InboxPosition(self._writer.generation, sequence)


def keys_of(schema: StoredSchema) -> list[PartitionKey]:
    """All partitions of the declared streams."""
    return list(_ttls(schema))


def dismissals(schema: StoredSchema, inbox: InboxReader, gateways: int) -> list[tuple[PartitionKey, Event]]:
    """Events that end the members of gateways which the application does not have any more.

    Gateways are named ``g0`` to ``g<gateways - 1>``. For a gateway with a greater number the driver says that a new
    generation has started, because the gateway itself will not. Sinks have no members.
    """
    known = {f"g{number}" for number in range(gateways)} | {DRIVER}
    gone = {
        gateway: max(files, default=0) + 1
        for gateway, files in inbox.unread({}, fresh=True).items()
        if gateway not in known and not gateway.startswith(SINK)
    }
    return [
        (key, GatewayStarted(gateway, generation))
        for gateway, generation in sorted(gone.items())
        for key in keys_of(schema)
    ]


class Retention:
    """The expiry of an application's records. ``tables`` and ``inbox`` are the application's.

    Readers learn from the key's controller that records are gone. So a key is told first, and the files are deleted
    once the batch is committed in which the key has heard it. After a crash the same is found again.
    """

    def __init__(self, tables: TableMover, inbox: DriverInbox) -> None:
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
        firsts: dict[PartitionKey, int] = {}
        for key, ttl in _ttls(schema).items():
            if ttl is None or key in self._told:
                continue
            if (expired := self._tables.expired(*key, now - round(ttl * 1000))) is not None:
                firsts[key] = expired
        if firsts:
            position = self._inbox.write([(key, RecordsExpired(first)) for key, first in firsts.items()])
            self._told.update({key: (first, position) for key, first in firsts.items()})


def _ttls(schema: StoredSchema) -> dict[PartitionKey, float | None]:
    """All partitions of the declared streams, with the ttl of their stream in seconds."""
    streams = [one for one in schema.objects.values() if isinstance(one, StreamDeclaration)]
    return {PartitionKey(one.key.path, number): one.ttl for one in streams for number in range(one.partitions)}
