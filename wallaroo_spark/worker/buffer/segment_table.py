"""Segments as a table: a row for each, and a column for each of its fields.

Segments of thousands of streams are added, searched and removed with a few operations on columns. A row keeps its
number for as long as it is in use.

Source: ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
_FIRST = 1024
"""The least number of rows of a table."""
_SPARE = 8
"""A table is shrunk when it has this many times the rows that are in use, if its last rows are unused.

An unused row has 68 bytes in the columns, which are not counted in the buffer's budget.
"""


class SegmentTable:
    """Columns of the segments in use. Rows of removed segments are used again; a table with many such rows shrinks."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.first: NDArray[np.int64] = np.zeros(_FIRST, np.int64)
        """The position of the first row."""
        self.serial: NDArray[np.int64] = np.full(_FIRST, -1, np.int64)
        """The serial number of the lot; -1 where the table's row is not in use."""
        self.low: NDArray[np.int64] = np.zeros(_FIRST, np.int64)
        """The first row in the lot."""
        self.high: NDArray[np.int64] = np.zeros(_FIRST, np.int64)
        """The row in the lot behind the last one."""
        self.size: NDArray[np.int64] = np.zeros(_FIRST, np.int64)
        """Bytes of memory of the rows."""
        self.first_id: NDArray[np.uint64] = np.zeros(_FIRST, np.uint64)
        """The message id of the first row."""
        self.last_id: NDArray[np.uint64] = np.zeros(_FIRST, np.uint64)
        """The message id of the last row."""
        self.receipt: NDArray[np.int32] = np.zeros(_FIRST, np.int32)
        """The index in the lot's ``receipts``."""
        self._free: Rows = np.arange(_FIRST - 1, -1, -1, dtype=np.int64)
        """The numbers of the unused rows, in its first ``_left`` places; the last of these is used next."""
        self._left = _FIRST
        """The number of unused rows."""
        self._shrink_at = 0
        """The number of rows in use at which the next attempt to make the table smaller is due."""

    def __len__(self) -> int:
        return len(self._free) - self._left

    @property
    def capacity(self) -> int:
        """The number of rows of the table."""
        return len(self._free)

    def take(self, count: int) -> Rows:
        """Return ``count`` unused rows to fill, which are in use from now on."""
        while self._left < count:
            self._double()
        self._left -= count
        if len(self) * _SPARE > 2 * self.capacity:
            self._shrink_at = self.capacity // _SPARE
        return self._free[self._left : self._left + count][::-1].copy()

    def _double(self) -> None:
        size = self.capacity
        for name, column in list(vars(self).items()):
            if isinstance(column, np.ndarray) and name != "_free":
                more: NDArray[Any] = np.zeros(size, column.dtype)
                setattr(self, name, np.concatenate([column, more]))
        self.serial[size:] = -1
        free = np.zeros(2 * size, np.int64)
        free[:size] = np.arange(2 * size - 1, size - 1, -1)
        free[size : size + self._left] = self._free[: self._left]
        self._free, self._left = free, self._left + size

    def give_back(self, rows: Rows) -> None:
        """Mark rows as unused. A table with many spare rows shrinks."""
        self.serial[rows] = -1
        self._free[self._left : self._left + len(rows)] = rows
        self._left += len(rows)
        if self.capacity <= _FIRST:
            return
        if not len(self):
            self._reset()
        elif len(self) <= self._shrink_at:
            self._shrink()

    def _shrink(self) -> None:
        """Cut unused rows from the end of the table, and let the first of the other unused rows be filled first."""
        used = np.flatnonzero(self.serial >= 0)
        size = _FIRST
        while size < max(int(used[-1]) + 1, 2 * len(used)):
            size *= 2
        if size < self.capacity:
            for name, column in list(vars(self).items()):
                if isinstance(column, np.ndarray):
                    setattr(self, name, column[:size].copy())
        free = np.flatnonzero(self.serial < 0)[::-1]
        self._free[: len(free)] = free
        self._left = len(free)
        # While a row at the end is in use, each attempt would read the whole table and free nothing.
        self._shrink_at = min(self.capacity // _SPARE, len(used) // 2)

    def keep_only(self, rows: Rows) -> None:
        """Mark all rows but these as unused."""
        unused = np.ones(self.capacity, np.bool_)
        unused[rows] = False
        free = np.flatnonzero(unused)
        self.serial[free] = -1
        self._free[: len(free)] = free
        self._left = len(free)

    def of_lots(self, serials: list[int]) -> dict[int, Rows]:
        """The rows of the segments of each of these lots, in the order of the segments within their lot."""
        chosen = np.flatnonzero(np.isin(self.serial, np.array(serials, np.int64)))
        chosen = chosen[np.lexsort((self.low[chosen], self.serial[chosen]))]
        found = self.serial[chosen]
        wanted = sorted(serials)
        edges = np.searchsorted(found, np.array([*wanted, wanted[-1] + 1], np.int64))
        return {serial: chosen[edges[at] : edges[at + 1]] for at, serial in enumerate(wanted)}
