"""Deletes old files of the history of instances.

A file is deleted once every instance that began in it, or in an older file, has ended long enough ago. So files go
from the oldest on, and an instance loses its begin first; a reader leaves out an instance without a begin.
Source: ``docs/pipelines/engine.md#tables``.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.streams.rows import HistoryKind
from wallaroo_spark.streams.tables.table_files import HistoryFile, TableFolders

_COLUMNS = ["pipeline", "partition", "instance", "kind"]


class InstanceKey(NamedTuple):
    """The identity of an instance."""

    pipeline: str
    """Name of its pipeline."""
    partition: int
    """Partition of the pipeline's input."""
    instance: int
    """Its number."""


class HistoryExpiry:
    """The expiry of the history in ``tables``; for one thread at a time.

    Each file is read once in the life of this object, when all of it is old. An active instance keeps the file of its
    begin and all newer files.
    """

    def __init__(self, tables: TableFolders) -> None:
        self._tables = tables
        self._read: deque[HistoryFile] = deque()
        """The old files that are there, in their order."""
        self._last: HistoryFile | None = None
        """The newest file that was read."""
        self._active: dict[InstanceKey, HistoryFile] = {}
        """The instances that have not ended in the files that were read, with the files of their begins, in order."""

    def expire(self, before: int) -> int:
        """Delete the files whose instances have all ended before ``before`` (milliseconds); return their number.

        Raises :class:`wallaroo_spark.errors.CheckpointError` when a file cannot be read or deleted; the call can be
        repeated.
        """
        for file in self._tables.listed_history():
            if self._last is not None and file <= self._last:
                continue
            if not self._take(file, before):
                break
        deleted = 0
        oldest = next(iter(self._active.values()), None)
        while self._read and (oldest is None or self._read[0] < oldest):
            self._tables.delete(self._read[0].path)
            self._read.popleft()
            deleted += 1
        return deleted

    def _take(self, file: HistoryFile, before: int) -> bool:
        """Read a file if all of its rows are old; return whether they are."""
        try:
            with contextlib.closing(self._tables.open(self._tables.path(file.path))) as rows:
                column = rows.schema_arrow.get_field_index("at")
                groups = (rows.metadata.row_group(number) for number in range(rows.num_row_groups))
                newest = max(pa.scalar(one.column(column).statistics.max, pa.timestamp("us", "UTC")) for one in groups)
                if newest.value >= before * 1000:
                    return False
                found = rows.read(columns=_COLUMNS)
        except (OSError, pa.ArrowInvalid) as error:
            raise self._tables.unreadable(file.path, error) from error
        # The rows of a file are not in the order of time, so an end may stand before its begin.
        ended = _instances(found, HistoryKind.ENDED)
        for key in _instances(found, HistoryKind.BEGAN) - ended:
            self._active[key] = file
        for key in ended:
            self._active.pop(key, None)
        self._read.append(file)
        self._last = file
        return True


def _instances(rows: pa.Table, kind: HistoryKind) -> set[InstanceKey]:
    chosen = rows.filter(pc.equal(rows.column("kind"), str(kind)))
    values = (chosen.column(name).to_pylist() for name in InstanceKey._fields)
    return {InstanceKey(*one) for one in zip(*values, strict=True)}
