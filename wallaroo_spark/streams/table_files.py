"""The files of tables: their names and their file system, where the records of a partition are, and their row groups.

Source: ``docs/pipelines/engine.md#files``.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar import durable
from wallaroo_spark.storage.locations import Location, open_location
from wallaroo_spark.streams.places import HISTORY, STREAMS

DELTA_LOG = "_delta_log"
"""The folder of Delta's log in the folder of a stream."""
MOVED = "moved.json"
"""The file with the newest batch that was moved into the tables."""
_HISTORY = re.compile(r"([0-9]{20})-[0-9]{20}-([0-9]+)\.parquet")
_PARTITION = re.compile(r"partition=([0-9]+)")
_RECORDS = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")


class TableFile(NamedTuple):
    """A file of a stream's table."""

    first: int
    """Its first offset."""
    last: int
    """Its last offset, inclusive."""

    @property
    def name(self) -> str:
        """Its name in the folder of its partition."""
        return f"{self.first:020d}-{self.last:020d}.parquet"


class HistoryFile(NamedTuple):
    """A file of the history. Their order is that of time."""

    first: int
    """The first batch that it is made of."""
    number: int
    """Its number among the files of the same move."""
    path: str
    """Its path, relative to the application's folder."""


class TableFolders:
    """The folders of the tables of the application in ``folder``, as the session ``spark`` opens it.

    Paths are relative to the application's folder. The methods raise OSError, where they do not say
    :class:`CheckpointError`.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        opened = open_location(folder, spark)
        self.filesystem, self._root = opened.filesystem, opened.root
        self.identity, self.objects = opened.identity.rstrip("/"), opened.objects

    def partition(self, key: PartitionKey) -> str:
        """The folder of a partition."""
        return f"{STREAMS}/{key.stream}/partition={key.partition}"

    def records(self, key: PartitionKey, first: int, last: int) -> str:
        """The file of these offsets of a partition."""
        return f"{self.partition(key)}/{TableFile(first, last).name}"

    def history(self, first: int, last: int, number: int) -> str:
        """The ``number``-th file of the history that the batches from ``first`` to ``last`` have made."""
        return f"{HISTORY}/{first:020d}-{last:020d}-{number}.parquet"

    def path(self, relative: str) -> str:
        """The path of a file on :attr:`filesystem`."""
        return f"{self._root}/{relative}" if self._root else relative

    def listed(self, key: PartitionKey) -> list[TableFile]:
        """The files of a partition, in the order of their offsets. Raises :class:`CheckpointError`."""
        found = (_RECORDS.fullmatch(name) for name in self._names(self.partition(key)))
        return [TableFile(int(match[1]), int(match[2])) for match in found if match]

    def listed_history(self) -> list[HistoryFile]:
        """The files of the history, in their order. Raises :class:`CheckpointError`."""
        found = ((name, _HISTORY.fullmatch(name)) for name in self._names(HISTORY))
        return sorted(HistoryFile(int(match[1]), int(match[2]), f"{HISTORY}/{name}") for name, match in found if match)

    def _names(self, relative: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder. Raises :class:`CheckpointError`."""
        try:
            selector = fs.FileSelector(self.path(relative), allow_not_found=True)
            return sorted(info.base_name for info in self.filesystem.get_file_info(selector))
        except OSError as error:
            raise self.unreadable(relative, error) from error

    def partitions(self) -> list[PartitionKey]:
        """The partitions that have a folder. Raises :class:`CheckpointError`."""
        found = []
        for namespace in self._names(STREAMS):
            for name in self._names(f"{STREAMS}/{namespace}"):
                stream = f"{namespace}/{name}"
                folders = (_PARTITION.fullmatch(one) for one in self._names(f"{STREAMS}/{stream}"))
                found += [PartitionKey(stream, int(one[1])) for one in folders if one]
        return found

    def size_and_time(self, relative: str) -> tuple[int, int]:
        """The size of a file in bytes, and the time of its last change in milliseconds since 1970 UTC."""
        info = self.filesystem.get_file_info(self.path(relative))
        if info.type is not fs.FileType.File:
            raise FileNotFoundError(f"{self.identity}/{relative} is missing")
        return info.size, 0 if info.mtime_ns is None else info.mtime_ns // 1_000_000

    def exists(self, relative: str) -> bool:
        """Whether there is a file of this path."""
        found: bool = self.filesystem.get_file_info(self.path(relative)).type == fs.FileType.File
        return found

    def take(self, source: str, relative: str) -> None:
        """Give a complete file, ``source`` on :attr:`filesystem`, this path; durable when it returns."""
        target = self.path(relative)
        if not self.objects or durable.through_hadoop(self.filesystem):
            durable.make_folder(self.filesystem, target.rpartition("/")[0])
        durable.replace(self.filesystem, source, target)

    def delete(self, relative: str) -> None:
        """Delete a file; does nothing if it does not exist. Raises :class:`CheckpointError`."""
        try:
            durable.delete_file(self.filesystem, self.path(relative))
        except OSError as error:
            raise self.unwritable(relative, "deleted", error) from error

    def delete_empty(self, key: PartitionKey) -> bool:
        """Delete the folder of a partition if it is empty, and then that of its stream, with its log of Delta.

        Returns whether the stream has no folder now. Raises :class:`CheckpointError`.
        """
        for relative in (self.partition(key), f"{STREAMS}/{key.stream}"):
            if {*self._names(relative)} - {DELTA_LOG}:
                return False
            try:
                if self.filesystem.get_file_info(self.path(relative)).type is fs.FileType.Directory:
                    self.filesystem.delete_dir(self.path(relative))
            except OSError as error:
                raise self.unwritable(relative, "deleted", error) from error
        return True

    def open(self, path: str) -> Any:
        """Open a Parquet file, ``path`` on :attr:`filesystem`."""
        try:
            return pq.ParquetFile(self.filesystem.open_input_file(path))
        except NotImplementedError:
            # Through Spark's Hadoop files are only read from their beginning.
            with self.filesystem.open_input_stream(path) as stream:
                return pq.ParquetFile(pa.BufferReader(stream.read()))

    @contextlib.contextmanager
    def reading(self, relative: str) -> Iterator[Any]:
        """Open a Parquet file for a block, in which errors of reading are raised as :class:`CheckpointError`."""
        try:
            with contextlib.closing(self.open(self.path(relative))) as file:
                yield file
        except (OSError, pa.ArrowInvalid) as error:
            raise self.unreadable(relative, error) from error

    def unreadable(self, relative: str, error: Exception) -> CheckpointError:
        """The error for a file that cannot be read."""
        where = f"{self.identity}/{relative}"
        return CheckpointError(
            f"{where} cannot be read: {error}; check that this process reaches the application's file system",
            code="checkpoint-unreadable",
            location=where,
        )

    def unwritable(self, relative: str, verb: str, error: Exception) -> CheckpointError:
        """The error for a file that cannot be written or deleted; ``verb`` is a participle."""
        where = f"{self.identity}/{relative}"
        return CheckpointError(
            f"{where} cannot be {verb}: {error}; check that the driver may write to the application's folder and that "
            "the file system has free space",
            code="checkpoint-unwritable",
            location=where,
        )


def newest_time(file: Any, column: str) -> int:
    """The newest time in a column of a Parquet file, in microseconds, from the statistics of the file."""
    place = file.schema_arrow.get_field_index(column)
    groups = (file.metadata.row_group(number).column(place) for number in range(file.num_row_groups))
    newest: int = max(pa.scalar(group.statistics.max, pa.timestamp("us", "UTC")).value for group in groups)
    return newest


class Place(NamedTuple):
    """A file with records that follow each other."""

    first: int
    """Its first offset."""
    last: int
    """Its last offset, inclusive."""
    path: str
    """The file, on the file system of the application's folder."""


class PartitionIndex:
    """The files of a partition, as far as they are known; they cover a range of offsets without a hole."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        """The files, in the order of their offsets."""

    @property
    def first(self) -> int | None:
        """The first offset; None without a file."""
        return self.places[0].first if self.places else None

    @property
    def last(self) -> int:
        """The last offset; 0 without a file."""
        return self.places[-1].last if self.places else 0

    def add(self, place: Place) -> None:
        """Add a file behind the others. A file whose records are known is ignored."""
        if place.last > self.last:
            self.places.append(place)

    def at_or_after(self, offset: int) -> Place | None:
        """The file with this offset, or the first file behind it; None if all records are before it."""
        at = bisect.bisect_left(self.places, offset, key=lambda place: place.last)
        return self.places[at] if at < len(self.places) else None


_KEPT_BYTES = 64 << 20
"""The most bytes of row groups in memory: a choice."""
_KEPT_FILES = 256
"""The most files whose row groups are known: a choice."""


class RowGroups:
    """The row groups of files in ``tables``. Not for several threads at once. Methods raise OSError."""

    def __init__(self, tables: TableFolders) -> None:
        self._tables = tables
        self._starts: OrderedDict[str, list[int]] = OrderedDict()
        """For each file the position of the first row of each row group, and the number of rows."""
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._bytes = 0

    def rows(self, path: str, start: int, count: int) -> pa.Table:
        """At most ``count`` rows from the position ``start`` on; at least one, from one row group."""
        starts = self._starts.get(path)
        if starts is not None:
            at = bisect.bisect_right(starts, start) - 1
            group = self._groups.get((path, at))
            if group is not None:
                self._groups.move_to_end((path, at))
                return group.slice(start - starts[at], count)
        with contextlib.closing(self._tables.open(path)) as file:
            sizes = (file.metadata.row_group(number).num_rows for number in range(file.num_row_groups))
            starts = list(itertools.accumulate(sizes, initial=0))
            at = bisect.bisect_right(starts, start) - 1
            group = file.read_row_group(at)
        self._keep(path, starts, at, group)
        return group.slice(start - starts[at], count)

    def _keep(self, path: str, starts: list[int], at: int, group: pa.Table) -> None:
        self._starts[path] = starts
        if len(self._starts) > _KEPT_FILES:
            self._starts.popitem(last=False)
        self._groups[path, at] = group
        self._bytes += group.nbytes
        while self._bytes > _KEPT_BYTES and len(self._groups) > 1:
            _, dropped = self._groups.popitem(last=False)
            self._bytes -= dropped.nbytes
