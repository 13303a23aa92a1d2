"""The driver's work after a commit: outputs are moved into the tables, and files that nobody needs are deleted.

Source: ``docs/pipelines/engine.md#the-steps-of-a-batch``.
"""

from __future__ import annotations

import time

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.application.driver_inbox import DriverInbox, Retention
from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.engine.source import offset_of
from wallaroo_spark.observe.published import GaugeFile
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.storage.locations import for_tasks
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.delta import DeltaLogs
from wallaroo_spark.streams.inbox import InboxReader
from wallaroo_spark.streams.mover import HistoryExpiry, TableMover
from wallaroo_spark.streams.table_files import TableFolders

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
