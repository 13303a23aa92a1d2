"""The driver's work beside the query: events of its own, retention, the files of a commit, and the newest schema.

After a commit, outputs are moved into the tables, and files that nobody needs are deleted.

Source: ``docs/pipelines/engine.md#files``, ``docs/pipelines/running.md``,
``docs/pipelines/engine.md#the-steps-of-a-batch`` and ``docs/pipelines/in-spark.md#functions-of-stages``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.application.checks import declared_functions, import_errors, problems
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.engine.source import offset_of
from wallaroo_spark.engine.source.plan import zone_problems
from wallaroo_spark.errors import one_line
from wallaroo_spark.observe.published import GaugeFile
from wallaroo_spark.pipelines.controller.messages.events import Event, GatewayStarted, RecordsExpired
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.storage.locations import Location, for_tasks
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.delta import DeltaLogs
from wallaroo_spark.streams.inbox import DRIVER, SINK, InboxPosition, InboxReader, InboxWriter
from wallaroo_spark.streams.mover import HistoryExpiry, TableMover
from wallaroo_spark.streams.table_files import TableFolders


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


MOVE_BATCHES = 64
"""Batches after which outputs are moved even before their time. It bounds the manifests of one move."""
_NEVER = float("-inf")


class Housekeeping:
    """Moves and deletes the files of an application; one thread at a time.

    ``files`` is the application's checkpoint, ``gauges`` follows its batches. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written; they may be called again.
    """

    def __init__(
        self, files: CheckpointFiles, settings: ApplicationSettings, inbox: DriverInbox, gauges: GaugeFile
    ) -> None:
        folder, spark = settings.folder, settings.spark
        self.moved = -1
        """The newest batch whose outputs are in the tables; -1 before the first."""
        self._files = files
        self._gauges = gauges
        self._settings = settings
        self._moved_at = self._expired_at = _NEVER
        self._mover = TableMover(folder, spark, delta=DeltaLogs(for_tasks(folder, spark)) if settings.delta else None)
        self._outputs = BatchOutputs(folder, spark)
        self._inbox = InboxReader(folder, spark)
        self._schemas = SchemaStore(folder, spark)
        self._retention = Retention(self._mover, inbox)
        self._history = HistoryExpiry(TableFolders(folder, spark))

    def newest_committed(self) -> int:
        """The newest batch that the outputs in the folder prove to have been committed; -1 without one.

        A batch is moved after its commit, and a manifest is written after the commit of the batch before. Called once,
        at the start: it also finishes a move of a driver that has died, and deletes what that has half written.
        """
        self._outputs.folder.delete_drafts()
        sealed = self._outputs.sealed()
        return max(self._mover.moved_to(), max(sealed) - 1 if sealed else -1)

    def work(self, committed: int, *, all_now: bool = False) -> None:
        """Do everything that is due; ``committed`` is the newest committed batch. ``all_now``: do not wait."""
        now = time.monotonic()
        self._gauges.follow(committed)
        waiting = committed - self.moved
        if waiting and (all_now or now >= self._moved_at + self._settings.move_seconds or waiting >= MOVE_BATCHES):
            self._mover.move(committed)
            self.moved, self._moved_at = self._mover.moved_to(), now
            self._gauges.store()
            self._delete(committed)
        if not all_now and now >= self._expired_at + self._settings.retention_seconds:
            millis = time.time_ns() // 1_000_000
            self._retention.look(self._schemas.newest(), millis, offset_of(self._files, committed).inbox)
            if self._settings.history_seconds is not None:
                self._history.expire(millis - round(self._settings.history_seconds * 1000))
            self._expired_at = now

    def _delete(self, committed: int) -> None:
        """Delete the files that no later batch, and no gateway, reads."""
        read = offset_of(self._files, committed)
        self._inbox.delete_read(read.inbox)
        # The newest manifest always stays, because it has all timers.
        keep = committed + 1 - self._settings.keep
        self._outputs.keep_from(max(0, min(committed, read.batch + 1, self.moved + 1, keep)))


log = one_line(logging.getLogger("wallaroo_spark.engine"))

AGAIN_SECONDS = 10.0
"""Seconds between two attempts to import functions that could not be imported: an import may read files."""

_INSTALL = "; install the function's package, or correct `run` of the stage and apply the schema again"


class SchemaWatch:
    """Follows the versions of the schema; ``application`` names the application in the log.

    One thread at a time calls :meth:`look`.
    """

    def __init__(self, schemas: SchemaStore, application: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.problems: Sequence[str] = ()
        """A sentence for each function that cannot be imported, and each schedule that has no times on this machine."""
        self._schemas = schemas
        self._application = application
        self._clock = clock
        self._schema = StoredSchema()
        self._looked = clock()

    def look(self) -> None:
        """Look at a newer version, and from time to time again at functions that could not be imported.

        A problem is logged when it is new. Raises as :class:`SchemaStore` does.
        """
        newest = self._schemas.seen_version()
        if newest != self._schema.version:
            self._schema = self._schemas.version(newest)
        elif not self.problems or self._clock() < self._looked + AGAIN_SECONDS:
            return
        self._looked = self._clock()
        declared = declared_functions(self._schema.objects)
        errors = import_errors(one.function for one in declared)
        remedies = dict.fromkeys(problems(declared, "the driver", errors), _INSTALL)
        remedies.update(dict.fromkeys(zone_problems(self._schema), ""))
        found = tuple(remedies)
        for problem in found:
            if problem not in self.problems:
                text = f"{problem}{remedies[problem]}; everything else goes on"
                log.error("application %s, version %d of its schema: %s", self._application, newest, text)
        if self.problems and not found:
            log.info("application %s: all functions and time zones of its schema are there now", self._application)
        self.problems = found
