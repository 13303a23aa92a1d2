"""Decodes runs of MESSAGE frames to columns, many runs in one pass.

A pass has a fixed cost that exceeds the cost of a message. So runs that arrived from many connections at about the same
time are decoded together.

Source: ``docs/decisions/blocks-of-exact-size.md``; ``docs/protocol.md#frame-bodies``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar.find import Fields, Positions, Present, Unsound, locate, stride_of
from wallaroo_spark.columnar.schema import STORED_SCHEMA
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Message, MessageRun
from wallaroo_spark.protocol.framing import HEADER_BYTES

ROW_OVERHEAD = 64
"""Bytes counted for each message beside its key and payload.

An estimate of the fixed columns (18 bytes), the offsets of key and value (8 bytes) and the arrays of ids, flags and
sizes that are kept with them (18 bytes), rounded up.
"""

TOGETHER = 4 << 20
"""Greatest total size in bytes of the runs in one pass; a longer run is decoded alone.

A choice: twice the size of a lot (2 MiB, see ``docs/decisions/runs.md``), so that one lot is one pass. It bounds the
memory of the positions, which are 8 bytes each.
"""

LARGE = 64 << 10
"""A column of at least this many bytes is copied into a block of its exact size.

A choice: Arrow's allocators serve smaller blocks from shared pages, where the rest of a block leaves no gap. See
``docs/decisions/blocks-of-exact-size.md`` for the measured gain.
"""

_OFFSET_MAX = 2**31 - 1
_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}
# The range of Spark's timestamps in µs: 0001-01-01 to the end of 9999-12-31, UTC.
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999


@dataclass(frozen=True, eq=False)
class Decoded:
    """The valid messages of some runs, in the order of sending.

    The object keeps the runs' buffers alive; the result of :meth:`columns` does not.
    """

    fields: Fields
    """Positions and values of the messages' fields."""
    edges: NDArray[np.int64]
    """Run r consists of the messages from ``edges[r]`` to ``edges[r + 1]``; one entry more than runs."""
    error: RemoteProtocolError | None
    """Error of the message behind the last valid one; None when all are valid. With an error there is only one run."""
    event_time_unit: str
    """Unit of the event times on the wire: ns, us, ms or s."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.fields.stream_ids)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Counted memory of each message, in bytes."""
        # A missing key has no bytes, so the distance from the key's start to the end is the size of key and payload.
        return self.fields.ends - self.fields.key_starts + ROW_OVERHEAD

    def columns(self, order: NDArray[np.intp] | None = None) -> pa.RecordBatch:
        """The columns of :data:`~.schema.STORED_SCHEMA`, in memory of their own, of the rows in ``order``.

        Event times become µs since 1970 UTC, and null where a Spark timestamp cannot hold them.
        """
        fields, count = self.fields, self.count

        def pick(rows: Any) -> Any:
            return rows if order is None or not np.ndim(rows) else rows[order]

        return pa.RecordBatch.from_arrays(
            [
                pa.array(pick(fields.message_ids).view(np.int64), mask=_missing(pick(fields.has_id), count)),
                _timestamps(pick(fields.event_times), pick(fields.has_time), self.event_time_unit),
                _binary(fields.data, fields.key_starts, fields.value_starts, order, pick(fields.has_key)),
                _binary(fields.data, fields.value_starts, fields.ends, order, pick(~fields.boundary)),
                pa.array(pick(fields.flags).view(np.int16)),
            ],
            schema=STORED_SCHEMA,
        )


def decode_run(run: MessageRun, *, event_time_unit: str) -> Decoded:
    """Decode a run up to its first invalid message. ``event_time_unit`` is ns, us, ms or s."""
    sound, error = run, None
    while True:
        try:
            return _decode([sound], error, event_time_unit)
        except Unsound as found:
            # The messages in front of it have not passed all later checks yet, hence the loop.
            sound = sound.head(found.index)
            error = _error_of(run, found.index)


def decode_runs(runs: Sequence[MessageRun], *, event_time_unit: str) -> Iterator[tuple[list[int], Decoded]]:
    """:func:`decode_run` for many runs, together where possible. Yields the indexes of runs and their messages."""
    for chosen in _together(runs):
        if len(chosen) > 1:
            try:
                decoded = _decode([runs[index] for index in chosen], None, event_time_unit)
            except Unsound:
                pass
            else:
                yield chosen, decoded
                continue
        for index in chosen:
            yield [index], decode_run(runs[index], event_time_unit=event_time_unit)


def _together(runs: Sequence[MessageRun]) -> Iterator[list[int]]:
    """Yield the indexes of runs that fit one pass: of the same revision, and of at most ``TOGETHER`` bytes."""
    by_revision: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        by_revision.setdefault(run.revision.name, []).append(index)
    for indices in by_revision.values():
        chosen: list[int] = []
        size = 0
        for index in indices:
            if chosen and size + runs[index].size > TOGETHER:
                yield chosen
                chosen, size = [], 0
            chosen.append(index)
            size += runs[index].size
        yield chosen


def _decode(runs: Sequence[MessageRun], error: RemoteProtocolError | None, unit: str) -> Decoded:
    data, starts, ends, edges = _joined(runs)
    # Arrow's binary type has 32-bit offsets. A run comes from a few reads and one frame, which is far below that.
    assert len(data) <= _OFFSET_MAX, f"runs that end {len(data)} bytes into their buffer are beyond 32-bit offsets"
    return Decoded(locate(data, starts, ends, runs[0].revision), edges, error, unit)


def _joined(runs: Sequence[MessageRun]) -> tuple[bytes, Positions, Positions, NDArray[np.int64]]:
    """Concatenate the runs: the data, the starts and ends of the bodies, and the number of messages before each run."""
    edges = np.cumsum([0, *(run.count for run in runs)])
    if len(runs) == 1:
        run = runs[0]
        starts = np.asarray(run.starts, dtype=np.int64)
        return run.data, starts, np.append(starts[1:] - HEADER_BYTES, run.end)[: run.count], edges
    pieces, begins, at = [], [], 0
    for run in runs:
        first = int(run.starts[0]) - HEADER_BYTES
        pieces.append(run.data[first : run.end])
        begins.append(np.asarray(run.starts, dtype=np.int64) + (at - first))
        at += run.end - first
    starts = np.concatenate(begins)
    # The runs have no gaps between them, so a run's last message ends where the next run's first header begins.
    return b"".join(pieces), starts, np.append(starts[1:] - HEADER_BYTES, at), edges


def _error_of(run: MessageRun, index: int) -> RemoteProtocolError:
    body = run.data[run.starts[index] : run.end_of(index)]
    try:
        run.revision.decode(run.revision.by_frame[Message].tag, body)
    except RemoteProtocolError as error:
        return error
    raise AssertionError(f"{run.revision.name} decodes message {index} of a run, and bulk decoding refuses it")


def _missing(present: Present, count: int) -> NDArray[np.bool_] | None:
    return None if present.all() else np.broadcast_to(~present, count)


def _binary(
    data: bytes, starts: Positions, ends: Positions, order: NDArray[np.intp] | None, present: Present
) -> pa.Array:
    """The pieces of ``data`` from ``starts`` to ``ends`` as a binary array, in this order and in memory of its own.

    ``present`` has the order of the result, which is null where ``present`` is false. The memory has exactly the size
    of the pieces, because a block that is shrunk after it was filled leaves a gap.
    """
    count = len(starts)
    if not present.any():
        return pa.nulls(count, pa.binary())
    if present.all() and (rows := _evenly_spaced(data, starts, ends)) is not None:
        return _equal_pieces(rows, order)
    # A binary array over the whole buffer alternates between pieces and the gaps between them.
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    chosen = np.arange(0, 2 * count, 2, dtype=np.int32) if order is None else 2 * order
    return _exactly(pieces.take(pa.array(chosen, mask=_missing(present, count))))


def _evenly_spaced(data: bytes, starts: Positions, ends: Positions) -> NDArray[np.uint8] | None:
    """The pieces as rows of a 2-D view, without a copy, if all have the same size and distance; None otherwise."""
    size, stride = int(ends[0] - starts[0]), stride_of(starts)
    if stride is None or not (ends - starts == size).all():
        return None
    return np.ndarray((len(starts), size), np.uint8, buffer=data, offset=int(starts[0]), strides=(stride, 1))


def _equal_pieces(rows: NDArray[np.uint8], order: NDArray[np.intp] | None) -> pa.Array:
    """Rows of bytes as a binary array, in this order, copied only once."""
    count, size = rows.shape
    values = pa.allocate_buffer(count * size)
    copy = np.frombuffer(values, np.uint8).reshape(count, size)
    if order is None:
        np.copyto(copy, rows)
    else:
        # With mode="clip", numpy writes directly to ``out``; the default mode uses a temporary copy.
        np.take(rows, order, axis=0, out=copy, mode="clip")
    offsets = (np.arange(count + 1) * size).astype(np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), values])


def _exactly(taken: pa.Array) -> pa.Array:
    """Copy the array into blocks of exact size, because Arrow built it in a block that had to grow."""
    present, offsets, data = taken.buffers()
    size = int(np.frombuffer(offsets, np.int32)[len(taken)])
    if size < LARGE:
        return taken
    values = pa.allocate_buffer(size)
    np.copyto(np.frombuffer(values, np.uint8), np.frombuffer(data, np.uint8)[:size])
    return pa.BinaryArray.from_buffers(pa.binary(), len(taken), [present, offsets, values])


def _timestamps(times: NDArray[np.int64], present: Present, unit: str) -> pa.Array:
    kind = STORED_SCHEMA.field("event_time").type
    if not present.any():
        return pa.nulls(len(times), kind)
    if unit == "ns":
        return pa.array(times // 1_000, type=kind, mask=_missing(present, len(times)))
    factor = _MICROSECONDS[unit]
    # The limits are divided, because multiplying the times could overflow.
    held = present & (times >= -(-_EARLIEST // factor)) & (times <= _LATEST // factor)
    return pa.array(np.where(held, times, 0) * factor, type=kind, mask=_missing(held, len(times)))
