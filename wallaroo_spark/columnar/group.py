"""Decoded runs taken apart by stream.

Source: ``docs/decisions/runs.md``; ``docs/architecture.md#rules``, rule 3 (order within a stream).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar.decode import Decoded
from wallaroo_spark.columnar.locate import any_flag
from wallaroo_spark.protocol import Flags, StreamSpan

_SPECIAL = Flags.EOS | Flags.EPHEMERAL | Flags.UNSTABLE_REFERENCE


@dataclass(frozen=True, eq=False)
class Lot:
    """The rows of some runs, sorted so that the rows of one run and stream lie together, in the order of sending.

    It keeps nothing of the runs' buffers alive.
    """

    stored: pa.RecordBatch
    """The columns of :data:`~.schema.STORED_SCHEMA`."""
    message_ids: NDArray[np.uint64]
    """The id of each row's message, 0 where the frame has none."""
    flags: NDArray[np.uint16]
    """The flags of each row's message."""
    sizes: NDArray[np.int64]
    """The memory that each row costs, in bytes."""
    plain: bool
    """Whether no message has the flag EOS, EPHEMERAL or UNSTABLE_REFERENCE."""


@dataclass(slots=True, eq=False)
class StreamRows:
    """The rows of one stream in one run: rows ``low`` to ``high`` of a lot."""

    lot: Lot
    stream_id: int
    low: int
    high: int
    size: int
    """The memory that they cost, in bytes."""
    rising: bool
    """Whether each message id is above the one before it."""

    def __len__(self) -> int:
        return self.high - self.low

    def head(self, count: int) -> StreamRows:
        """The first ``count`` of the rows."""
        high = self.low + count
        return StreamRows(self.lot, self.stream_id, self.low, high, int(self.sizes[:count].sum()), self.rising)

    @property
    def stored(self) -> pa.RecordBatch:
        """The rows' columns, not copied."""
        return self.lot.stored.slice(self.low, self.high - self.low)

    @property
    def message_ids(self) -> NDArray[np.uint64]:
        """The rows' message ids."""
        return self.lot.message_ids[self.low : self.high]

    @property
    def flags(self) -> NDArray[np.uint16]:
        """The rows' flags."""
        return self.lot.flags[self.low : self.high]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The memory that each row costs, in bytes."""
        return self.lot.sizes[self.low : self.high]


@dataclass(slots=True, eq=False)
class RunRows:
    """One run by stream, in order of first appearance: ``parts``, and ``spans``, the argument of
    :meth:`~wallaroo_spark.protocol.WorkerSession.admit`. ``count`` is the number of messages.
    """

    count: int
    spans: list[StreamSpan]
    parts: list[StreamRows]
    _places: _Places

    def until(self, end: int) -> list[StreamRows]:
        """The parts, without the messages from index ``end`` of the run on."""
        if end >= self.count:
            return self.parts
        kept = []
        for part in self.parts:
            part.high = part.low + int(np.searchsorted(self._places.of(part), end))
            if len(part):
                part.size = int(part.sizes.sum())
                kept.append(part)
        return kept


class _Places(NamedTuple):
    """The index in the run of each row of its parts; without an order, they follow each other."""

    order: NDArray[np.intp] | None
    base: int

    def of(self, part: StreamRows) -> NDArray[np.intp]:
        rows = np.arange(part.low, part.high) if self.order is None else self.order[part.low : part.high]
        return rows - self.base


def by_stream(decoded: Decoded) -> list[RunRows]:
    """The streams of each run."""
    if not decoded.count:
        return [RunRows(0, [], [], _Places(None, 0)) for _ in decoded.edges[1:]]
    numbers = _numbers(decoded)
    order = None
    if numbers is None:
        # Each run is of one stream.
        lows = decoded.edges[:-1]
    else:
        counts = np.bincount(numbers)
        lows = np.cumsum(counts) - counts
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
    return list(_runs(decoded, order, lows))


def _numbers(decoded: Decoded) -> NDArray[np.uint16] | NDArray[np.int32] | None:
    """A number for the run and stream of each message, counted in order of first appearance.

    None when no run has more than one stream.
    """
    stream_ids, edges = decoded.stream_ids, decoded.edges
    lengths = np.diff(edges)
    if len(lengths) == 1:
        if (stream_ids == stream_ids[0]).all():
            return None
        encoded = pa.array(stream_ids).dictionary_encode()
    else:
        if (np.repeat(stream_ids[edges[:-1]], lengths) == stream_ids).all():
            return None
        codes = pa.array(stream_ids).dictionary_encode()
        pairs = np.repeat(np.arange(len(lengths)) * len(codes.dictionary), lengths) + codes.indices.to_numpy()
        encoded = pa.array(pairs).dictionary_encode()
    numbers: NDArray[np.int32] = encoded.indices.to_numpy()
    # Sixteen bits are sorted in a fraction of the time.
    return numbers.astype(np.uint16) if len(encoded.dictionary) <= 0xFFFF else numbers


def _runs(decoded: Decoded, order: NDArray[np.intp] | None, lows: NDArray[np.int64]) -> Iterator[RunRows]:
    lot = _lot(decoded, order)
    firsts = lows if order is None else order[lows]
    highs = np.append(lows[1:], decoded.count)
    run_of = np.searchsorted(decoded.edges, firsts, side="right") - 1
    rising = lot.message_ids[1:] > lot.message_ids[:-1]
    rising[lows[1:] - 1] = True
    all_rise = [True] * len(lows) if rising.all() else np.logical_and.reduceat(np.append(rising, True), lows).tolist()
    columns = (
        decoded.stream_ids[firsts].tolist(),
        lows.tolist(),
        highs.tolist(),
        np.add.reduceat(lot.sizes, lows).tolist(),
        all_rise,
    )
    parts = [StreamRows(lot, *row) for row in zip(*columns, strict=True)]
    ends = np.searchsorted(run_of, np.arange(len(decoded.edges) - 1), side="right").tolist()
    begin, edges = 0, decoded.edges.tolist()
    first_rows = firsts.tolist()
    for run, end in enumerate(ends):
        mine, places = parts[begin:end], _Places(order, edges[run])
        if lot.plain:
            starts = [row - places.base for row in first_rows[begin:end]]
            spans = [StreamSpan(part.stream_id, at, first_lasting=at) for part, at in zip(mine, starts, strict=True)]
        else:
            spans = [_span(part, places.of(part)) for part in mine]
        yield RunRows(edges[run + 1] - places.base, spans, mine, places)
        begin = end


def _lot(decoded: Decoded, order: NDArray[np.intp] | None) -> Lot:
    ids, flags, sizes = decoded.message_ids, decoded.flags, decoded.sizes
    if order is not None:
        ids, flags, sizes = ids[order], flags[order], sizes[order]
    return Lot(decoded.columns(order), ids, flags, sizes, not any_flag(flags, _SPECIAL).any())


def _span(part: StreamRows, places: NDArray[np.intp]) -> StreamSpan:
    def place(row: int) -> int | None:
        return int(places[row]) if row < len(places) else None

    def first(chosen: NDArray[np.bool_]) -> int:
        return int(chosen.argmax()) if chosen.any() else len(places)

    ephemeral = any_flag(part.flags, Flags.EPHEMERAL)
    eos = first(any_flag(part.flags, Flags.EOS))
    return StreamSpan(
        part.stream_id, int(places[0]), place(eos), place(eos + 1), place(first(ephemeral)), place(first(~ephemeral))
    )
