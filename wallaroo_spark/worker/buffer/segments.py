"""Rows of one stream as they arrived, and their memory.

Rows that arrived together lie in one lot. The memory of a lot is released when all its rows are dropped. When less than
half of a lot is still held, the held rows are copied and the lot's memory is released, so that a stream that waits long
for its commit keeps little memory of other streams. Small lots that arrived one after another are joined, so that
messages sent one by one cost little more than messages sent together. The segments themselves are rows of a table
(:mod:`.segment_table`).

Source: ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar import Lot
from wallaroo_spark.protocol import Flags
from wallaroo_spark.worker.buffer.commit_ages import CommitAges
from wallaroo_spark.worker.buffer.segment_table import Rows, SegmentTable

SEGMENT_OVERHEAD = 192
"""Bytes of a segment in addition to its rows: a row of the table, and its number in its stream.

Computed: 68 bytes of columns, at most twice that after the table has grown, and 40 for the number in the stream.
"""
LOT_OVERHEAD = 4096
"""Bytes of a lot in addition to its rows: numpy headers and Arrow's own bookkeeping (measured)."""
SMALL_LOT = 4 * LOT_OVERHEAD
"""A lot with fewer bytes of rows is joined with its neighbours, because its own cost matters."""
LARGEST_MERGED = 1 << 20
"""Limit in bytes of the rows of a joined lot.

A lot's memory is kept until half of it is dropped, so a larger lot would keep more.
"""
_COMPACT_BELOW = 0.5
"""A lot is compacted when less than this part of it is held.

A row is copied only once each time a lot halves, and a lot has at most twice the memory of its held rows.
"""
_MERGE_FROM = 256
"""Number of held lots at which small ones are joined. Each join looks at all lots."""


class Receipt(NamedTuple):
    """The sender of a segment's rows, and the time of their arrival."""

    instance: str
    """The connector instance."""
    received_at: int
    """The time of arrival, in µs since 1970 UTC."""


class Lots:
    """The lots with held rows. ``used`` is their memory in bytes, with that of their segments."""

    def __init__(self) -> None:
        self.used = 0
        self.table = SegmentTable()
        self.commit_ages = CommitAges()
        self._serial = 0
        self._held: dict[int, HeldLot] = {}
        self._touched: set[HeldLot] = set()
        self._merge_at = _MERGE_FROM
        self._unmerged = 0

    def hold(self, lot: Lot) -> HeldLot:
        """Register a lot that has arrived. Its memory is counted from its first segment on."""
        self._serial += 1
        return HeldLot(lot, self._serial)

    def of(self, serial: int) -> HeldLot:
        """The lot with this serial number. It must have a segment."""
        return self._held[serial]

    def add(
        self,
        held: HeldLot,
        receipts: int | NDArray[np.int64],
        firsts: NDArray[np.int64],
        lows: NDArray[np.int64],
        highs: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> Rows:
        """Add segments of a lot; return their rows in the table.

        ``receipts`` are indexes in the lot's receipts: one for each segment, or one for all.
        """
        table, ids = self.table, held.lot.message_ids
        rows = table.take(len(lows))
        table.serial[rows] = held.serial
        table.first[rows] = firsts
        table.low[rows], table.high[rows], table.size[rows] = lows, highs, sizes
        table.first_id[rows], table.last_id[rows] = ids[lows], ids[highs - 1]
        table.receipt[rows] = receipts
        count, size = len(rows), int(sizes.sum())
        # From here on nothing can fail, so the lot has either all of the segments or none.
        if not held.count:
            self._held[held.serial] = held
            self._unmerged += held.size < SMALL_LOT
            self.used += held.size + LOT_OVERHEAD
        held.count += count
        held.live += size
        self.used += count * SEGMENT_OVERHEAD
        return rows

    def count_committed(self, rows: Rows) -> None:
        """The rows of these segments are committed, and about to be removed."""
        self.commit_ages.add(self.received_at(rows), self.table.high[rows] - self.table.low[rows])

    def received_at(self, rows: Rows) -> NDArray[np.int64]:
        """When the rows of these segments arrived, in µs since 1970 UTC; in one pass over columns."""
        if not len(rows):
            return np.zeros(0, np.int64)
        serials, which = np.unique(self.table.serial[rows], return_inverse=True)
        receipts = [self._held[serial].receipts for serial in serials.tolist()]
        times = np.fromiter((receipt.received_at for one in receipts for receipt in one), np.int64)
        begins = np.cumsum([0, *(len(one) for one in receipts[:-1])])
        found: NDArray[np.int64] = times[begins[which] + self.table.receipt[rows]]
        return found

    def remove(self, rows: Rows) -> None:
        """Remove the segments in these rows of the table."""
        if not len(rows):
            return
        serials, sizes = self.table.serial[rows], self.table.size[rows]
        if len(rows) == 1 or (serials == serials[0]).all():
            self._lose(self._held[int(serials[0])], len(rows), int(sizes.sum()))
        else:
            lots, which = np.unique(serials, return_inverse=True)
            counts = np.bincount(which)
            # Sums of bytes are exact in a double up to 2^53.
            freed = np.bincount(which, weights=sizes)
            for serial, count, size in zip(lots.tolist(), counts.tolist(), freed.tolist(), strict=True):
                self._lose(self._held[serial], count, int(size))
        self.table.give_back(rows)

    def _lose(self, held: HeldLot, count: int, size: int) -> None:
        """Record that ``count`` segments of a lot, with ``size`` bytes, were removed."""
        before = held.cost
        held.count -= count
        held.live -= size
        if not held.count:
            del self._held[held.serial]
        self.used += held.cost - before
        self.touch(held)

    def touch(self, held: HeldLot) -> None:
        """Record that a smaller part of a lot is held than before."""
        self._touched.add(held)

    def merge(self, *, tight: bool = False) -> None:
        """Join small lots if there are many, or in any case (``tight``)."""
        if not self._unmerged or (not tight and len(self._held) < self._merge_at):
            return
        runs: list[list[HeldLot]] = [[]]
        size = 0
        for _, held in sorted(self._held.items()):
            if runs[-1] and (held.size >= SMALL_LOT or size + held.size > LARGEST_MERGED):
                runs.append([])
                size = 0
            if held.size < SMALL_LOT:
                runs[-1].append(held)
                size += held.size
        for run in runs:
            self._put_together(run)
        self._unmerged = 0
        self._merge_at = max(_MERGE_FROM, 2 * len(self._held))

    def _put_together(self, run: list[HeldLot]) -> None:
        """Replace several consecutive lots by one lot, which has their place in the order of all lots."""
        if len(run) < 2:
            return
        self._compact([held for held in run if held.live < held.size])
        merged = HeldLot(_together([held.lot for held in run]), run[0].serial)
        merged.count, merged.live = sum(held.count for held in run), sum(held.live for held in run)
        of_lots = self.table.of_lots([held.serial for held in run])
        rows = np.concatenate([of_lots[held.serial] for held in run])
        counts = [len(of_lots[held.serial]) for held in run]
        behind = np.repeat(np.cumsum([0, *(len(held.lot.sizes) for held in run[:-1])]), counts)
        receipts = np.repeat(np.cumsum([0, *(len(held.receipts) for held in run[:-1])]), counts)
        merged.receipts = [receipt for held in run for receipt in held.receipts]
        before = sum(held.cost for held in run)
        # From here on nothing can fail, so either all segments move or none.
        table = self.table
        table.serial[rows] = merged.serial
        table.low[rows] += behind
        table.high[rows] += behind
        table.receipt[rows] += receipts.astype(np.int32)
        for held in run:
            del self._held[held.serial]
            held.count = held.live = 0
        self._held[merged.serial] = merged
        self.used += merged.cost - before

    def settle(self, *, tight: bool = False) -> None:
        """Release the memory of dropped rows, from lots of which less than half is held, or from all (``tight``)."""
        if self._touched:
            touched, self._touched = self._touched, set()
            part = 1 if tight else _COMPACT_BELOW
            self._compact([held for held in touched if held.count and held.live < held.size * part])

    def _compact(self, lots: list[HeldLot]) -> None:
        """Release the memory of all dropped rows of these lots."""
        table = self.table
        of_lots = table.of_lots([held.serial for held in lots]) if lots else {}
        for held in lots:
            rows = of_lots[held.serial]
            lows = table.low[rows]
            counts = table.high[rows] - lows
            ends = np.cumsum(counts)
            lot = held.lot.take(numbered(lows, counts))
            # From here on nothing can fail, so the lot and its segments change together.
            self.used += held.live - held.size
            held.lot, held.size = lot, held.live
            table.low[rows], table.high[rows] = ends - counts, ends

    def recover(self, rows: Iterable[int]) -> None:
        """Become consistent after an error: keep only the segments in these rows, and count the memory again."""
        table = self.table
        kept = np.fromiter(rows, np.int64)
        table.keep_only(kept)
        lots, which = np.unique(table.serial[kept], return_inverse=True)
        counts, live = np.bincount(which).tolist(), np.bincount(which, weights=table.size[kept]).tolist()
        for held in self._held.values():
            held.count = held.live = 0
        self._held = {serial: self._held[serial] for serial in lots.tolist()}
        for held, count, size in zip(self._held.values(), counts, live, strict=True):
            held.count, held.live = count, int(size)
        self._touched = set(self._held.values())
        self._unmerged = sum(held.size < SMALL_LOT for held in self._held.values())
        self.used = sum(held.cost for held in self._held.values())


class HeldLot:
    """A lot, with the count of the segments and bytes in it that are held."""

    def __init__(self, lot: Lot, serial: int) -> None:
        self.lot = lot
        self.serial = serial
        """A number that increases from lot to lot, in the order of arrival."""
        self.size = int(lot.sizes.sum())
        """Bytes of memory of all its rows."""
        self.live = 0
        """Bytes of memory of the held rows."""
        self.count = 0
        """The number of its segments."""
        self.receipts: list[Receipt] = []
        """The receipts of its rows; segments refer to them by index."""

    @property
    def cost(self) -> int:
        """Its bytes of memory, with its segments; 0 without segments."""
        return self.size + LOT_OVERHEAD + self.count * SEGMENT_OVERHEAD if self.count else 0

    def receipt(self, instance: str, received_at: int) -> int:
        """The index of a receipt in ``receipts``, to which it is added if it is not the last one already."""
        receipt = Receipt(instance, received_at)
        if not self.receipts or self.receipts[-1] != receipt:
            self.receipts.append(receipt)
        return len(self.receipts) - 1


def numbered(lows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers ``low``, ``low + 1``, … of each range, ``count`` of them, for all ranges in one column."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(lows - ends + counts, counts)


def _together(lots: list[Lot]) -> Lot:
    return Lot(
        pa.concat_batches([lot.stored for lot in lots]),
        np.concatenate([lot.message_ids for lot in lots]),
        np.concatenate([lot.flags for lot in lots]),
        np.concatenate([lot.sizes for lot in lots]),
        all(lot.plain for lot in lots),
    )


class Segment:
    """Consecutive rows of one stream: ``low`` to ``high`` of a lot; a view of a row of the table."""

    __slots__ = ("_lots", "row")

    def __init__(self, lots: Lots, row: int) -> None:
        self._lots = lots
        self.row = row

    def __len__(self) -> int:
        return self.high - self.low

    @property
    def held(self) -> HeldLot:
        """The lot that contains its rows."""
        return self._lots.of(int(self._lots.table.serial[self.row]))

    @property
    def first(self) -> int:
        """The position of its first row."""
        return int(self._lots.table.first[self.row])

    @property
    def low(self) -> int:
        """The first row in the lot."""
        return int(self._lots.table.low[self.row])

    @property
    def high(self) -> int:
        """The row in the lot behind the last one."""
        return int(self._lots.table.high[self.row])

    @property
    def size(self) -> int:
        """Bytes of memory of its rows."""
        return int(self._lots.table.size[self.row])

    @property
    def last_id(self) -> int:
        """The message id of its last row."""
        return int(self._lots.table.last_id[self.row])

    @property
    def receipt(self) -> Receipt:
        """The sender of its rows, and when they arrived."""
        return self.held.receipts[int(self._lots.table.receipt[self.row])]

    @property
    def end(self) -> int:
        """The position behind its last row."""
        return self.first + self.high - self.low

    @property
    def ids(self) -> NDArray[np.uint64]:
        """The message ids of its rows."""
        return self.held.lot.message_ids[self.low : self.high]

    @property
    def flags(self) -> NDArray[np.uint16]:
        """The flags of its rows."""
        return self.held.lot.flags[self.low : self.high]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of memory of each of its rows."""
        return self.held.lot.sizes[self.low : self.high]

    def place(self, position: int) -> int:
        """The row of the lot at a position of the stream."""
        return self.low + position - self.first

    def keep(self, begin: int, end: int) -> int:
        """Drop all rows but those at positions ``begin`` to ``end``, which it contains; return the released bytes."""
        held, low, high, table, row = self.held, self.place(begin), self.place(end), self._lots.table, self.row
        lot = held.lot
        size = int(lot.sizes[low:high].sum())
        less = self.size - size
        table.first[row], table.low[row], table.high[row], table.size[row] = begin, low, high, size
        table.first_id[row], table.last_id[row] = lot.message_ids[low], lot.message_ids[high - 1]
        held.live -= less
        self._lots.touch(held)
        return less

    def slice(self, begin: int, end: int) -> LotSlice:
        """Its rows at positions ``begin`` to ``end``; it must contain some of these positions."""
        held, low, high, size, last_id = self.held, self.low, self.high, self.size, self.last_id
        lot = held.lot
        if self.first < begin or self.end > end:
            low, high = self.place(max(begin, self.first)), self.place(min(end, self.end))
            size, last_id = int(lot.sizes[low:high].sum()), int(lot.message_ids[high - 1])
        return LotSlice(lot, held.serial, low, high, size, last_id, self.receipt)

    def stable_ends(self) -> NDArray[np.int64]:
        """The positions behind rows with a stable id, from which the stream can be resumed."""
        stable = np.flatnonzero((self.flags & np.uint16(Flags.UNSTABLE_REFERENCE)) == 0)
        return stable.astype(np.int64) + (self.first + 1)


class LotSlice(NamedTuple):
    """Consecutive rows of a lot to deliver, in the state in which they were found."""

    lot: Lot
    serial: int
    """Serial number of the lot."""
    low: int
    """Index of the first row in the lot."""
    high: int
    """Index behind the last row in the lot."""
    size: int
    """Memory of the rows, in bytes."""
    last_id: int
    """Message id of the last row."""
    receipt: Receipt

    @property
    def stored(self) -> pa.RecordBatch:
        """Its rows' columns, not copied."""
        return self.lot.stored.slice(self.low, self.high - self.low)
