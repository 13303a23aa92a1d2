"""Reads records of a stream by their offsets, from its table and from committed batches that are not moved yet.

The first read of a partition lists its folder. After that the reader follows the manifests of committed batches, so the
cost of a read does not depend on the number of files. A file of a batch that was moved meanwhile is found in the table
by its offsets. If it was joined with others it stays for as long as its batch; then the folder is listed again.
Source: ``docs/pipelines/engine.md#tables``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from typing import Any

import pyarrow as pa

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location, within
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest, OutputFile
from wallaroo_spark.streams.places import CHECKPOINT, TABLES
from wallaroo_spark.streams.rows import OutputKind, as_events
from wallaroo_spark.streams.table_files import MOVED, PartitionIndex, Place, RowGroups, TableFolders

_FOLLOWED = 64
"""The most batches that a reader follows; after more, it lists the folder again. The kept batches."""
_FIRST_ROWS = 16
"""The records that are read first where their bytes are limited, and their size is not known. They have 3 MiB
at most."""
_TRIES = 5
"""Tries of a read during which files are moved or deleted: a choice."""


class TableReader:
    """The tables of the application in ``folder``, for all streams of one process.

    A process without a Spark session gives none, and a location as ``for_tasks`` makes it. Several threads may call it.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self.tables = TableFolders(folder, spark)
        self._outputs = BatchOutputs(folder, spark)
        self._folder = SidecarFolder(folder, TABLES, spark=spark)
        self._checkpoint = CheckpointFiles(within(folder, CHECKPOINT), spark)
        self._groups = RowGroups(self.tables)
        self._indexes: dict[PartitionKey, tuple[PartitionIndex, int]] = {}
        """The index of each partition, and the newest batch in it."""
        self._manifests: OrderedDict[int, dict[PartitionKey, OutputFile]] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, key: PartitionKey, first: int, last: int | None = None, *, most_bytes: int | None = None
    ) -> tuple[int, tuple[CloudEvent, ...]]:
        """The offset of the first returned record, and the records from there on, without a hole.

        They begin at ``first``, or behind it if retention has removed records. They end at ``last``, a few records
        behind ``most_bytes``, or with the last committed record. A batch that runs again reads the same records, except
        those that retention has removed meanwhile. Raises :class:`wallaroo_spark.errors.CheckpointError` when files
        cannot be read.
        """
        end = sys.maxsize if last is None else last
        with self._lock:
            for _ in range(_TRIES):
                try:
                    return self._read(key, first, end, most_bytes)
                except (FileNotFoundError, PipelineError) as error:
                    # A file was deleted, or a batch was moved and deleted meanwhile.
                    gone = error
                    self._indexes.pop(key, None)
                except (OSError, pa.ArrowInvalid) as error:
                    raise self.tables.unreadable(self.tables.partition(key), error) from error
            raise self.tables.unreadable(self.tables.partition(key), gone) from gone

    def oldest(self, key: PartitionKey) -> int | None:
        """The first offset that can be read; None if there are no records. Lists the partition's folder.

        Raises as :meth:`read`.
        """
        with self._lock:
            self._indexes.pop(key, None)
            return self._index(key, sys.maxsize).first

    def _read(
        self, key: PartitionKey, first: int, last: int, most_bytes: int | None
    ) -> tuple[int, tuple[CloudEvent, ...]]:
        index = self._index(key, last)
        found: list[CloudEvent] = []
        begin = at = max(first, index.first or first)
        end = min(index.last, last)
        size, step = 0, _FIRST_ROWS if most_bytes is not None else sys.maxsize
        while at <= end and (place := index.at_or_after(at)) is not None:
            if place.first > at:
                raise FileNotFoundError(f"the file with offset {at} is missing")
            rows = self._rows(key, place, at, min(end - at + 1, step))
            found += (events := as_events(rows))
            at += rows.num_rows
            if most_bytes is not None:
                size += sum(event.size for event in events)
                if size >= most_bytes:
                    break
                step = max(1, (most_bytes - size) * len(found) // max(1, size))
        return begin, tuple(found)

    def _rows(self, key: PartitionKey, place: Place, offset: int, count: int) -> pa.Table:
        try:
            return self._groups.rows(place.path, offset - place.first, count)
        except FileNotFoundError:
            # A file of a batch that was moved without others has the same offsets in the table.
            moved = self.tables.path(self.tables.records(key, place.first, place.last))
            if moved == place.path:
                raise
            return self._groups.rows(moved, offset - place.first, count)

    def _index(self, key: PartitionKey, offset: int) -> PartitionIndex:
        """The index of a partition with all committed records up to ``offset``."""
        known = self._indexes.get(key)
        if known is not None and known[0].last >= offset:
            return known[0]
        newest = self._checkpoint.committed()
        committed = -1 if newest is None else newest
        if known is None or committed - known[1] > _FOLLOWED:
            return self._listed(key, committed)
        index, followed = known
        self._follow(key, index, followed + 1, committed)
        self._indexes[key] = index, max(followed, committed)
        return index

    def _listed(self, key: PartitionKey, committed: int) -> PartitionIndex:
        """A new index.

        The batches are read before the table, so a file that is moved meanwhile is in one of them. The files of moved
        batches are in the table, or were deleted there.
        """
        moved = self._folder.read(MOVED)
        done = -1 if moved is None else int(json.loads(moved)["batch"])
        waiting = PartitionIndex()
        for batch in self._outputs.sealed():
            if done < batch <= committed:
                self._follow(key, waiting, batch, batch)
        index = PartitionIndex()
        for first, last in self.tables.listed(key):
            index.add(Place(first, last, self.tables.path(self.tables.records(key, first, last))))
        for place in waiting.places:
            index.add(place)
        self._indexes[key] = index, committed
        return index

    def _follow(self, key: PartitionKey, index: PartitionIndex, first: int, last: int) -> None:
        """Add the records of batches that are known to be committed."""
        for batch in range(first, last + 1):
            file = self._files(batch).get(key)
            if file is not None:
                index.add(Place(file.first or 0, file.last or 0, self._outputs.file_of(batch, file.name)))

    def _files(self, batch: int) -> dict[PartitionKey, OutputFile]:
        """The records of a committed batch, by partition. The manifest of a committed batch does not change."""
        found = self._manifests.get(batch)
        if found is None:
            manifest = self._outputs.manifest(batch) or Manifest(batch)
            found = self._manifests[batch] = {file.key: file for file in manifest.of(OutputKind.RECORDS)}
            if len(self._manifests) > 2 * _FOLLOWED:
                self._manifests.popitem(last=False)
        return found
