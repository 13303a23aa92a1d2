"""Reads rows of Parquet files by their position, and keeps the last row groups in memory, because readers go on."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections import OrderedDict

import pyarrow as pa

from wallaroo_spark.streams.tables.table_files import TableFolders

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
