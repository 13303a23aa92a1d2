"""Splits decoded runs by stream.

Source: ``docs/decisions/runs.md``; ``docs/architecture.md#rules``, rule 3 (order within a stream).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar.decode import Decoded
from wallaroo_spark.columnar.find import any_flag
from wallaroo_spark.protocol import Flags, StreamSpan

_SPECIAL = Flags.EOS | Flags.EPHEMERAL | Flags.UNSTABLE_REFERENCE


@dataclass(frozen=True, eq=False)
class Lot:
    """The rows of some runs, sorted so that the rows of one run and stream are adjacent, in the order of sending.

    It does not keep the runs' buffers alive.
    """

    stored: pa.RecordBatch
    """The columns of :data:`~.schema.STORED_SCHEMA`."""
    message_ids: NDArray[np.uint64]
    """Id of each row's message; 0 where the frame has none."""
    flags: NDArray[np.uint16]
    """Flags of each row's message."""
    sizes: NDArray[np.int64]
    """Counted memory of each row, in bytes."""
    plain: bool
    """Whether no message has the flag EOS, EPHEMERAL or UNSTABLE_REFERENCE."""

    def take(self, rows: NDArray[np.intp]) -> Lot:
        """Copies of some rows."""
        flags, sizes = self.flags[rows], self.sizes[rows]
        return Lot(self.stored.take(pa.array(rows)), self.message_ids[rows], flags, sizes, self.plain)


@dataclass(slots=True, eq=False)
class StreamRows:
    """The rows of one stream in one run: rows ``low`` to ``high`` of a lot."""

    lot: Lot
    stream_id: int
    low: int
    """Index of the first row in the lot."""
    high: int
    """Index behind the last row in the lot."""
    size: int
    """Counted memory of the rows, in bytes."""
    rising: bool
    """Whether each message id is greater than the one before it."""

    def __len__(self) -> int:
        return self.high - self.low

    def head(self, count: int) -> StreamRows:
        """The first ``count`` rows."""
        high = self.low + count
        return StreamRows(self.lot, self.stream_id, self.low, high, int(self.sizes[:count].sum()), self.rising)

    @property
    def message_ids(self) -> NDArray[np.uint64]:
        """Id of each row's message."""
        return self.lot.message_ids[self.low : self.high]

    @property
    def flags(self) -> NDArray[np.uint16]:
        """Flags of each row's message."""
        return self.lot.flags[self.low : self.high]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Counted memory of each row, in bytes."""
        return self.lot.sizes[self.low : self.high]


@dataclass(frozen=True, eq=False)
class Grouped:
    """The parts of all runs of a lot as columns, run by run; a part has the rows of one stream in one run."""

    lot: Lot
    """The decoded lot."""
    stream_ids: NDArray[np.uint64]
    """The stream of each part."""
    lows: NDArray[np.int64]
    """Index of the first row of each part in the lot."""
    highs: NDArray[np.int64]
    """Index behind the last row of each part."""
    sizes: NDArray[np.int64]
    """Counted memory of the rows of each part, in bytes."""
    rising: NDArray[np.bool_]
    """Whether the message ids of each part increase."""
    firsts: NDArray[np.int64]
    """Index of the first message of each part among all messages."""


class RunRows:
    """One run by stream, in order of first appearance: the parts from ``begin`` to ``end`` of ``grouped``, as columns.

    ``count`` is the number of messages. :class:`StreamRows` objects are made on request. ``grouped`` is None where no
    run has messages.
    """

    def __init__(self, count: int, grouped: Grouped | None, begin: int, end: int, places: _Places) -> None:
        self.count = count
        self.begin = begin
        self.end = end
        self.grouped = grouped
        self._places = places

    @property
    def stream_ids(self) -> list[int]:
        """The stream of each part."""
        columns = self.grouped
        return columns.stream_ids[self.begin : self.end].tolist() if columns is not None else []

    @cached_property
    def parts(self) -> list[StreamRows]:
        """The rows of each stream."""
        columns, mine = self.grouped, slice(self.begin, self.end)
        if columns is None:
            return []
        rows = (columns.stream_ids, columns.lows, columns.highs, columns.sizes, columns.rising)
        return [StreamRows(columns.lot, *row) for row in zip(*(column[mine].tolist() for column in rows), strict=True)]

    @cached_property
    def spans(self) -> list[StreamSpan]:
        """The argument of :meth:`~wallaroo_spark.protocol.WorkerSession.admit`."""
        columns, base = self.grouped, self._places.base
        if columns is None:
            return []
        if not columns.lot.plain:
            return [_span(part, self._places.of(part)) for part in self.parts]
        starts = columns.firsts[self.begin : self.end].tolist()
        return [
            StreamSpan(part.stream_id, at - base, first_lasting=at - base)
            for part, at in zip(self.parts, starts, strict=True)
        ]

    def until(self, end: int) -> list[StreamRows]:
        """The parts without the messages from index ``end`` of the run on."""
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
    """The index in the run of each row of its parts."""

    order: NDArray[np.intp] | None
    """Sorted order of the messages; None when the messages already were in the order of the parts."""
    base: int
    """Index of the run's first message among all messages."""

    def of(self, part: StreamRows) -> NDArray[np.intp]:
        rows = np.arange(part.low, part.high) if self.order is None else self.order[part.low : part.high]
        return rows - self.base


def by_stream(decoded: Decoded) -> list[RunRows]:
    """Split each run by stream."""
    if not decoded.count:
        return [RunRows(0, None, 0, 0, _Places(None, 0)) for _ in decoded.edges[1:]]
    numbers = _numbers(decoded)
    order = None
    if numbers is None:
        # Each run has messages of only one stream.
        lows = decoded.edges[:-1]
    else:
        counts = np.bincount(numbers)
        lows = np.cumsum(counts) - counts
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
    return list(_runs(decoded, order, lows))


def _numbers(decoded: Decoded) -> NDArray[np.uint16] | NDArray[np.int32] | None:
    """Number the run and stream of each message, in order of first appearance.

    None when no run has more than one stream.
    """
    stream_ids, edges = decoded.fields.stream_ids, decoded.edges
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
    # numpy sorts 16-bit integers by radix, which is faster than its sort of wider ones.
    return numbers.astype(np.uint16) if len(encoded.dictionary) <= 0xFFFF else numbers


def _runs(decoded: Decoded, order: NDArray[np.intp] | None, lows: NDArray[np.int64]) -> Iterator[RunRows]:
    lot = _lot(decoded, order)
    firsts = lows if order is None else order[lows]
    highs = np.append(lows[1:], decoded.count)
    run_of = np.searchsorted(decoded.edges, firsts, side="right") - 1
    rising = lot.message_ids[1:] > lot.message_ids[:-1]
    rising[lows[1:] - 1] = True
    grouped = Grouped(
        lot,
        decoded.fields.stream_ids[firsts],
        lows,
        highs,
        np.add.reduceat(lot.sizes, lows),
        np.ones(len(lows), np.bool_) if rising.all() else np.logical_and.reduceat(np.append(rising, True), lows),
        firsts,
    )
    ends = np.searchsorted(run_of, np.arange(len(decoded.edges) - 1), side="right").tolist()
    begin, edges = 0, decoded.edges.tolist()
    for run, end in enumerate(ends):
        yield RunRows(edges[run + 1] - edges[run], grouped, begin, end, _Places(order, edges[run]))
        begin = end


def _lot(decoded: Decoded, order: NDArray[np.intp] | None) -> Lot:
    ids, flags, sizes = decoded.fields.message_ids, decoded.fields.flags, decoded.sizes
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
