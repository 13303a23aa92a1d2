"""Rows of one stream as they came in, and the memory they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.protocol import Flags

SEGMENT_OVERHEAD = 4096
"""Bytes that a segment costs beside its rows: Python objects, numpy headers and Arrow's own bookkeeping (measured)."""


@dataclass(slots=True)
class Segment:
    """Consecutive rows of one stream. ``first`` is the position of its first row in the stream's ledger.

    ``cost`` is what it holds of memory, in bytes; a slice holds as much as the whole, since it keeps its columns.
    """

    first: int
    rows: pa.RecordBatch
    ids: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    flags: NDArray[np.uint16]
    received_at: int
    instance: str
    cost: int

    @property
    def end(self) -> int:
        """The position behind its last row."""
        return self.first + len(self.ids)

    def slice(self, begin: int, end: int) -> Segment:
        """The rows at positions ``begin`` to ``end``, which lie within."""
        low, high = begin - self.first, end - self.first
        return Segment(
            begin,
            self.rows.slice(low, high - low),
            self.ids[low:high],
            self.sizes[low:high],
            self.flags[low:high],
            self.received_at,
            self.instance,
            self.cost,
        )

    def stable_ends(self) -> NDArray[np.int64]:
        """The positions behind rows whose id can be resumed from."""
        stable = np.flatnonzero((self.flags & np.uint16(Flags.UNSTABLE_REFERENCE)) == 0)
        return stable.astype(np.int64) + (self.first + 1)
