"""Rows of one stream as they arrived, and the memory that they hold.

Rows that arrived together lie in one lot, whose memory is free once all of them are dropped. When less than half of a
lot is still held, these rows move to a lot of their own, so that a stream which waits long for its commit keeps little
memory of others. Small lots that arrived one after another are joined, so that messages sent one by one cost little
more than those sent at once.

Source: ``docs/architecture.md#rules``, rule 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar import Lot
from wallaroo_spark.protocol import Flags

SEGMENT_OVERHEAD = 320
"""Bytes that a segment costs beside its rows: Python objects (measured)."""
LOT_OVERHEAD = 4096
"""Bytes that a lot costs beside its rows: numpy headers and Arrow's own bookkeeping (measured)."""
SMALL_LOT = 4 * LOT_OVERHEAD
"""A lot with fewer bytes of rows is joined with its neighbours, because its own cost matters."""
LARGEST_MERGED = 1 << 20
"""Limit in bytes of the rows of a joined lot.

A choice: a lot's memory stays until half of it is dropped, so a large one would keep more.
"""
_COMPACT_BELOW = 0.5
"""A lot is compacted when less than this part of it is held.

A choice: each row is copied at most once for each halving, and a lot takes at most twice the memory of its held rows.
"""
_MERGE_FROM = 256
"""Number of held lots from which small ones are joined. A choice; each join looks at all of them."""


class Lots:
    """The lots that have held rows; ``used`` is the memory that they take, in bytes."""

    def __init__(self) -> None:
        self.used = 0
        self._serial = 0
        self._held: dict[int, HeldLot] = {}
        self._touched: set[HeldLot] = set()
        self._merge_at = _MERGE_FROM
        self._unmerged = 0

    def hold(self, lot: Lot) -> HeldLot:
        """Register a lot that has arrived. It is counted once a segment holds some of its rows."""
        self._serial += 1
        return HeldLot(self, lot, self._serial)

    def change(self, held: HeldLot, more: int) -> None:
        """A lot takes ``more`` bytes more than before, or fewer where it is negative."""
        self.used += more
        if more < 0:
            self.touch(held)

    def touch(self, held: HeldLot) -> None:
        """A smaller part of a lot is held than before."""
        self._touched.add(held)

    def enter(self, held: HeldLot) -> None:
        """A segment holds rows of a lot that had no held rows."""
        self._held[held.serial] = held
        self._unmerged += held.size < SMALL_LOT

    def leave(self, held: HeldLot) -> None:
        """No rows of a lot are held any more."""
        del self._held[held.serial]

    def merge(self, *, tight: bool = False) -> None:
        """Join small lots: where they have become many, or all of them (``tight``)."""
        if not self._unmerged or (not tight and len(self._held) < self._merge_at):
            return
        run: list[HeldLot] = []
        size = 0
        for _, held in sorted(self._held.items()):
            if run and (held.size >= SMALL_LOT or size + held.size > LARGEST_MERGED):
                self._put_together(run)
                run, size = [], 0
            if held.size < SMALL_LOT:
                run.append(held)
                size += held.size
        self._put_together(run)
        self._unmerged = 0
        self._merge_at = max(_MERGE_FROM, 2 * len(self._held))

    def _put_together(self, run: list[HeldLot]) -> None:
        """One lot out of several that follow each other, so that its place among all others is theirs."""
        if len(run) < 2:
            return
        for held in run:
            if held.live < held.size:
                held.compact()
        merged = HeldLot(self, _together([held.lot for held in run]), run[0].serial)
        moving: list[tuple[HeldLot, Segment, int, int]] = []
        behind = 0
        for held in run:
            for segment in held.segments:
                moving.append((held, segment, segment.low + behind, segment.high + behind))
            behind += len(held.lot.sizes)
        # Nothing in this loop can fail: all segments move, or none.
        for _, segment, low, high in moving:
            segment.held, segment.low, segment.high = merged, low, high
        for held, segment, _, _ in moving:
            held.remove(segment)
        for _, segment, _, _ in moving:
            merged.add(segment)

    def settle(self, *, tight: bool = False) -> None:
        """Drop rows that no segment holds from lots that segments have left: where it pays, or from all (``tight``)."""
        touched, self._touched = self._touched, set()
        for held in touched:
            if held.segments and held.live < held.size * (1 if tight else _COMPACT_BELOW):
                held.compact()

    def recover(self, segments: Iterable[Segment]) -> None:
        """After an error half-way: these segments are all there are, and say which lots are held and what is used."""
        lots: dict[HeldLot, set[Segment]] = {}
        for segment in segments:
            lots.setdefault(segment.held, set()).add(segment)
        for held, mine in lots.items():
            held.segments, held.live = mine, sum(segment.size for segment in mine)
        self._held = {held.serial: held for held in lots}
        assert len(self._held) == len(lots), "two lots have come in at the same time"
        self._touched = set(lots)
        self._unmerged = sum(held.size < SMALL_LOT for held in lots)
        self.used = sum(held.cost for held in lots)


class HeldLot:
    """A lot that segments hold rows of. ``serial`` grows with the time at which its rows arrived.

    ``size`` is the cost of all its rows, ``live`` that of the held rows, both in bytes.
    """

    def __init__(self, lots: Lots, lot: Lot, serial: int) -> None:
        self.lot = lot
        self.serial = serial
        self.size = int(lot.sizes.sum())
        self.live = 0
        self.segments: set[Segment] = set()
        self._lots = lots

    @property
    def cost(self) -> int:
        """The memory of the lot and its segments, in bytes."""
        return self.size + LOT_OVERHEAD + len(self.segments) * SEGMENT_OVERHEAD if self.segments else 0

    def add(self, segment: Segment) -> None:
        """A segment begins to hold some of its rows."""
        first = not self.segments
        if first:
            self._lots.enter(self)
        self.segments.add(segment)
        self.live += segment.size
        self._lots.change(self, SEGMENT_OVERHEAD + (self.size + LOT_OVERHEAD if first else 0))

    def remove(self, segment: Segment) -> None:
        """A segment no longer holds rows of it."""
        self.segments.remove(segment)
        self.live -= segment.size
        if not self.segments:
            self._lots.leave(self)
        self._lots.change(self, -SEGMENT_OVERHEAD - (0 if self.segments else self.size + LOT_OVERHEAD))

    def shrink(self, size: int) -> None:
        """A segment holds ``size`` bytes less of it."""
        self.live -= size
        self._lots.touch(self)

    def part(self, rows: NDArray[np.intp]) -> HeldLot:
        """Copy some of its rows to a lot of their own."""
        return self._lots.hold(_take(self.lot, rows))

    def compact(self) -> None:
        """Drop all rows that no segment holds."""
        segments = sorted(self.segments, key=lambda segment: segment.low)
        lot = _take(self.lot, np.concatenate([np.arange(segment.low, segment.high) for segment in segments]))
        places: list[tuple[Segment, int, int]] = []
        at = 0
        for segment in segments:
            places.append((segment, at, at + len(segment)))
            at += len(segment)
        more = self.live - self.size
        # Nothing up to the end of this loop can fail: the lot and its segments change together, or not at all.
        self.lot, self.size = lot, self.live
        for segment, low, high in places:
            segment.low, segment.high = low, high
        self._lots.change(self, more)

    def validate(self) -> None:
        """Check the invariants; for tests."""
        assert self.size == int(self.lot.sizes.sum()), self.size
        assert self.live == sum(segment.size for segment in self.segments), self.live
        places = sorted((segment.low, segment.high) for segment in self.segments)
        assert all(before[1] <= after[0] for before, after in pairwise(places)), places
        for segment in self.segments:
            assert segment.held is self
            assert segment.size == int(segment.sizes.sum()), segment
            assert segment.last_id == int(segment.ids[-1]), segment


def _take(lot: Lot, rows: NDArray[np.intp]) -> Lot:
    return Lot(lot.stored.take(pa.array(rows)), lot.message_ids[rows], lot.flags[rows], lot.sizes[rows], lot.plain)


def _together(lots: list[Lot]) -> Lot:
    return Lot(
        pa.concat_batches([lot.stored for lot in lots]),
        np.concatenate([lot.message_ids for lot in lots]),
        np.concatenate([lot.flags for lot in lots]),
        np.concatenate([lot.sizes for lot in lots]),
        all(lot.plain for lot in lots),
    )


@dataclass(slots=True, eq=False)
class Segment:
    """Consecutive rows of one stream: a part of a lot."""

    first: int
    """Position of the first row in the stream."""
    held: HeldLot
    """The lot."""
    low: int
    """Index of the first row in the lot."""
    high: int
    """Index behind the last row in the lot."""
    size: int
    """Memory of its rows, in bytes."""
    last_id: int
    """Message id of the last row."""
    received_at: int
    """Time of arrival in µs since 1970 UTC."""
    instance: str
    """Instance that sent the rows."""

    def __len__(self) -> int:
        return self.high - self.low

    @property
    def end(self) -> int:
        """The position behind its last row."""
        return self.first + self.high - self.low

    @property
    def cost(self) -> int:
        """The memory that it takes by itself, in bytes."""
        return self.size + SEGMENT_OVERHEAD

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
        """The memory that each of its rows costs, in bytes."""
        return self.held.lot.sizes[self.low : self.high]

    def place(self, position: int) -> int:
        """The row of the lot at a position of the stream."""
        return self.low + position - self.first

    def keep(self, begin: int, end: int) -> None:
        """Hold only the rows at positions ``begin`` to ``end``, which lie within."""
        lot, low, high = self.held.lot, self.place(begin), self.place(end)
        size, last_id = int(lot.sizes[low:high].sum()), int(lot.message_ids[high - 1])
        less = self.size - size
        self.first, self.low, self.high, self.size, self.last_id = begin, low, high, size, last_id
        self.held.shrink(less)

    def slice(self, begin: int, end: int) -> LotSlice:
        """Its rows at positions ``begin`` to ``end``, of which it has some."""
        lot, low, high, size, last_id = self.held.lot, self.low, self.high, self.size, self.last_id
        if self.first < begin or self.end > end:
            low, high = self.place(max(begin, self.first)), self.place(min(end, self.end))
            size, last_id = int(lot.sizes[low:high].sum()), int(lot.message_ids[high - 1])
        return LotSlice(lot, self.held.serial, low, high, size, last_id, self.received_at, self.instance)

    def let_go(self) -> None:
        """Drop all rows."""
        self.held.remove(self)

    def stable_ends(self) -> NDArray[np.int64]:
        """The positions behind rows whose id can be resumed from."""
        if self.held.lot.plain:
            return np.arange(self.first + 1, self.end + 1)
        stable = np.flatnonzero((self.flags & np.uint16(Flags.UNSTABLE_REFERENCE)) == 0)
        return stable.astype(np.int64) + (self.first + 1)


class LotSlice(NamedTuple):
    """Rows of one stream to deliver: a part of a lot, unchanged by later changes of the buffer."""

    lot: Lot
    """The lot."""
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
    received_at: int
    """Time of arrival in µs since 1970 UTC."""
    instance: str
    """Instance that sent the rows."""

    @property
    def stored(self) -> pa.RecordBatch:
        """Its rows' columns, not copied."""
        return self.lot.stored.slice(self.low, self.high - self.low)
