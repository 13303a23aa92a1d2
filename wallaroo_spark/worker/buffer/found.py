"""Planned ranges whose rows the buffer has, as columns of slices to deliver.

Source: ``docs/architecture.md#workers-keep-uncommitted-rows``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wallaroo_spark.columnar import Lot
from wallaroo_spark.references import Reference, StreamKey
from wallaroo_spark.worker.buffer.segments import HeldLot, LotSlice, Receipt


@dataclass(frozen=True, slots=True)
class FoundRange:
    """One planned range as slices of lots."""

    key: StreamKey
    """The identity of its stream."""
    name: str
    """The name of its stream."""
    slices: tuple[tuple[LotSlice, Reference], ...]
    """Its slices in order, each with the reference of its last row."""


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices of lots, as columns. Later changes of the buffer do not change the rows that they refer to."""

    range: NDArray[np.int64]
    """The index of each slice's range."""
    serial: NDArray[np.int64]
    """The serial number of its lot."""
    lot: NDArray[np.int64]
    """The index of its lot in :attr:`FoundRanges.lots`."""
    low: NDArray[np.int64]
    """Its first row in the lot."""
    high: NDArray[np.int64]
    """The row behind its last one."""
    size: NDArray[np.int64]
    """Bytes of memory of its rows."""
    last_id: NDArray[Any]
    """The message id of its last row; without meaning for a range in :attr:`FoundRanges.texts`."""
    receipt: NDArray[np.int64]
    """The index in :attr:`FoundRanges.receipts` of its lot."""

    def __len__(self) -> int:
        return len(self.range)

    def __getitem__(self, chosen: slice | NDArray[np.int64]) -> Slices:
        return Slices(*(column[chosen] for column in self.columns()))

    def columns(self) -> list[NDArray[Any]]:
        """All columns, in the order of the fields."""
        return list(vars(self).values())

    def together(self, other: Slices) -> Slices:
        """These slices, followed by the others."""
        if not len(other):
            return self
        pairs = zip(self.columns(), other.columns(), strict=True)
        return Slices(*(np.concatenate(pair) for pair in pairs)) if len(self) else other


_KINDS: list[Any] = [np.int64] * 6 + [np.uint64, np.int64]
"""The kinds of the columns of :class:`Slices`."""


def no_slices() -> Slices:
    """Columns without slices."""
    return Slices(*(np.empty(0, kind) for kind in _KINDS))


@dataclass(eq=False)
class FoundRanges:
    """Planned ranges whose rows the buffer has, by the index of each in the request."""

    streams: dict[int, tuple[str, int]] = field(default_factory=dict)
    """The name and the id of the stream of each range."""
    lots: list[Lot] = field(default_factory=list)
    """The lots with the rows, in the state in which they were found."""
    receipts: list[list[Receipt]] = field(default_factory=list)
    """The receipts of each lot."""
    slices: Slices = field(default_factory=no_slices)
    """The slices of all ranges."""
    texts: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """The references that are not message ids, by range, serial number and first row of the slice."""
    _numbers: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.streams)

    def __iter__(self) -> Iterator[int]:
        return iter(self.streams)

    def __contains__(self, index: object) -> bool:
        return index in self.streams

    def number(self, lot: Lot, receipts: list[Receipt]) -> int:
        """The index of a lot in ``lots``."""
        number = self._numbers.setdefault(id(lot), len(self.lots))
        if number == len(self.lots):
            self.lots.append(lot)
            self.receipts.append(receipts)
        return number

    def add(self, found: Mapping[int, FoundRange]) -> None:
        """Add ranges that were found one by one."""
        rows: list[tuple[int, ...]] = []
        for index, one in found.items():
            self.streams[index] = one.name, one.key.stream_id
            for part, reference in one.slices:
                number = self.number(part.lot, [])
                if isinstance(reference, str):
                    self.texts[index, part.serial, part.low] = reference
                receipts = self.receipts[number] = [*self.receipts[number], part.receipt]
                last_id = 0 if isinstance(reference, str) else reference
                rows.append((index, part.serial, number, part.low, part.high, part.size, last_id, len(receipts) - 1))
        if rows:
            columns = (np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), _KINDS, strict=True))
            self.slices = self.slices.together(Slices(*columns))

    def add_rows(self, ranges: NDArray[np.int64], lots: list[HeldLot], columns: Mapping[str, NDArray[Any]]) -> None:
        """Add whole segments, given as columns of the table: one range for each, and all lots that contain them."""
        serials = columns["serial"]
        known = np.array([held.serial for held in lots], np.int64)
        numbers = np.array([self.number(held.lot, held.receipts) for held in lots], np.int64)
        order = np.argsort(known)
        lot = numbers[order[np.searchsorted(known, serials, sorter=order)]] if len(serials) else serials
        self.slices = self.slices.together(Slices(range=ranges, lot=lot, **columns))
