"""The driver's own inbox: events that no client has sent, such as the expiry of records. Source:
``docs/pipelines/engine.md#files``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from wallaroo_spark.pipelines.controller.messages.events import Event, GatewayStarted
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.store import StoredSchema
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.inbox import DRIVER, InboxPosition, InboxReader, InboxWriter


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
    streams = [one for one in schema.objects.values() if isinstance(one, StreamDeclaration)]
    return [PartitionKey(one.key.path, number) for one in streams for number in range(one.partitions)]


def dismissals(schema: StoredSchema, inbox: InboxReader, gateways: int) -> list[tuple[PartitionKey, Event]]:
    """Events that end the members of gateways which the application does not have any more.

    Gateways are named ``g0`` to ``g<gateways - 1>``. For a gateway with a greater number the driver says that a new
    generation has started, because the gateway itself will not.
    """
    known = {f"g{number}" for number in range(gateways)} | {DRIVER}
    found = inbox.unread({}, fresh=True)
    gone = {gateway: max(files, default=0) + 1 for gateway, files in found.items() if gateway not in known}
    return [
        (key, GatewayStarted(gateway, generation))
        for gateway, generation in sorted(gone.items())
        for key in keys_of(schema)
    ]
