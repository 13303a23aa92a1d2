"""A run of MESSAGE frames as columns, without a Python loop over messages or fields.

Each fixed field is one gather from a view of the buffer in which an integer begins at every byte; optional fields shift
what follows them, so positions are arrays too. Where all messages of a run carry the same flags, whether a field is
there is one truth value instead of an array of them, and the same expressions do far less.

Source: ``protocol.md``, section Frame bodies (MESSAGE, Flags); ``style.md`` on runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar.schema import STORED_SCHEMA
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.protocol import Flags, Message, MessageRun, StreamSpan
from wallaroo_spark.protocol.framing import HEADER_BYTES

ROW_OVERHEAD = 64
"""Bytes counted for each message beside its key and value: fixed columns, offsets, and the arrays kept with them."""

_OFFSET_MAX = 2**31 - 1
_MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}
# 0001-01-01 to the end of 9999-12-31, UTC: what Spark's timestamps hold.
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999

Present = NDArray[np.bool_] | np.bool_
"""Whether a field is there: row by row, or for all rows alike."""
Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DecodedRun:
    """The sound messages of a run as columns, an entry per message.

    ``message_ids`` has 0 where the frame carries no id; ``stored`` has the columns of :data:`~.schema.STORED_SCHEMA`;
    ``sizes`` is what each message costs in memory, in bytes. ``spans`` is what
    :meth:`~wallaroo_spark.protocol.WorkerSession.admit` asks for. ``error`` is what is wrong with the message behind
    the last one, None when the run is sound to its end.
    """

    count: int
    stream_ids: NDArray[np.uint64]
    message_ids: NDArray[np.uint64]
    flags: NDArray[np.uint16]
    stored: pa.RecordBatch
    spans: list[StreamSpan]
    sizes: NDArray[np.int64]
    error: RemoteProtocolError | None


def decode_run(run: MessageRun, *, event_time_unit: str) -> DecodedRun:
    """Decode a run up to its first unsound message; ``event_time_unit`` is ns, us, ms or s.

    The result holds copies: nothing of it keeps the run's buffer alive. Event times become µs since 1970 UTC, and null
    where a Spark timestamp cannot hold them.
    """
    # Arrow's binary type counts in 32 bits. A run lies within a few reads and one frame, far below that.
    assert run.end <= _OFFSET_MAX, f"a run that ends {run.end} bytes into its buffer is beyond 32-bit offsets"
    sound, error = run, None
    while True:
        try:
            fields = _locate(sound)
            break
        except _Unsound as found:
            # What comes before it has passed fewer checks than it will have to, hence the loop.
            sound = sound.head(found.index)
            error = _error_of(run, found.index)
    return _build(fields, sound.count, event_time_unit, error)


class _Unsound(Exception):
    """The message at ``index`` breaks a rule; those before it keep the rules checked so far."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def _error_of(run: MessageRun, index: int) -> RemoteProtocolError:
    body = run.data[run.starts[index] : run.end_of(index)]
    try:
        run.revision.decode(run.revision.by_frame[Message].tag, body)
    except RemoteProtocolError as error:
        return error
    raise AssertionError(f"message {index} of a run is sound for {run.revision.name} but not for its columns")


@dataclass(frozen=True, eq=False)
class _Fields:
    """Where the fields of a run are, and those of fixed size already read."""

    data: bytes
    flags: NDArray[np.uint16]
    stream_ids: NDArray[np.uint64]
    has_id: Present
    message_ids: NDArray[np.uint64]
    has_time: Present
    event_times: NDArray[np.int64]
    has_key: Present
    key_starts: Positions
    value_starts: Positions
    ends: Positions
    boundary: Present


def _locate(run: MessageRun) -> _Fields:
    """Check every message of a run and find its fields. Raises :class:`_Unsound`."""
    layout = run.revision.layout
    starts = np.array(run.starts, dtype=np.int64)
    ends = np.append(starts[1:] - HEADER_BYTES, run.end) if run.count else starts
    flags = np.zeros(run.count, dtype=np.uint16)
    at = starts
    if layout.known_flags is not None:
        _refuse(ends - starts < 2)
        flags = _integers(run, at, "u2").astype(np.uint16)
        _refuse(_any_flag(flags, 0xFFFF & ~int(layout.known_flags)))
        at = at + 2
    form: Any = flags[0] if run.count and (flags == flags[0]).all() else flags
    always = np.True_
    has_id = always if layout.ephemeral_has_id else ~_any_flag(form, Flags.EPHEMERAL)
    has_time = always if layout.known_flags is None else _any_flag(form, Flags.EVENT_TIME)
    has_key = always if layout.known_flags is None else _any_flag(form, Flags.KEY)
    ids_at = at + 8
    times_at = ids_at + has_id * np.int64(8)
    keys_at = times_at + has_time * np.int64(8)
    values_at = keys_at + has_key * np.int64(2)
    _refuse(ends < values_at)
    key_sizes = _where(has_key, run, keys_at, "u2").astype(np.int64)
    key_starts, values_at = values_at, values_at + key_sizes
    _refuse(ends < values_at)
    boundary = _any_flag(form, Flags.BOUNDARY)
    _refuse(boundary & (ends > values_at))
    event_times = _where(has_time, run, times_at, "u8").view(np.int64)
    if layout.known_flags is None:
        # Without flags, 0 and the empty key are how a message says that it has none.
        has_time, has_key = event_times != 0, key_sizes > 0
    return _Fields(
        run.data,
        flags,
        _integers(run, at, "u8"),
        has_id,
        _where(has_id, run, ids_at, "u8"),
        has_time,
        event_times,
        has_key,
        key_starts,
        values_at,
        ends,
        boundary,
    )


def _any_flag(flags: Any, bits: int) -> Any:
    return (flags & np.uint16(bits)) != 0


def _refuse(unsound: NDArray[np.bool_]) -> None:
    if unsound.any():
        raise _Unsound(int(unsound.argmax()))


def _integers(run: MessageRun, at: Positions, code: str) -> NDArray[Any]:
    """The integers of a type that begin at these bytes, in the machine's own order."""
    kind = np.dtype(run.revision.byte_order + code)
    if not len(at):
        return np.zeros(0, dtype=kind.newbyteorder("="))
    every_byte = np.ndarray(len(run.data) - kind.itemsize + 1, dtype=kind, buffer=run.data, strides=(1,))
    return every_byte[at].astype(kind.newbyteorder("="), copy=False)


def _where(present: Present, run: MessageRun, at: Positions, code: str) -> NDArray[Any]:
    """:func:`_integers` for the rows that have the field, 0 for the others."""
    if present.all():
        return _integers(run, at, code)
    found = np.zeros(len(at), dtype=code)
    if present.any():
        found[present] = _integers(run, at[present], code)
    return found


def _build(fields: _Fields, count: int, unit: str, error: RemoteProtocolError | None) -> DecodedRun:
    values = _binary(fields.data, fields.value_starts, fields.ends, ~fields.boundary)
    keys = _binary(fields.data, fields.key_starts, fields.value_starts, fields.has_key)
    stored = pa.RecordBatch.from_arrays(
        [
            pa.array(fields.message_ids.view(np.int64), mask=_missing(fields.has_id, count)),
            _timestamps(fields.event_times, fields.has_time, unit),
            keys,
            values,
            pa.array(fields.flags.view(np.int16)),
        ],
        schema=STORED_SCHEMA,
    )
    # A key of a message without one has no bytes, so what lies between its start and the end is all there is to store.
    sizes = fields.ends - fields.key_starts + ROW_OVERHEAD
    spans = _spans(fields.stream_ids, fields.flags)
    return DecodedRun(count, fields.stream_ids, fields.message_ids, fields.flags, stored, spans, sizes, error)


def _missing(present: Present, count: int) -> NDArray[np.bool_] | None:
    return None if present.all() else np.broadcast_to(~present, count)


def _binary(data: bytes, starts: Positions, ends: Positions, present: Present) -> pa.Array:
    """The pieces of ``data`` from ``starts`` to ``ends`` in memory of their own, null where not present."""
    count = len(starts)
    if not present.any():
        return pa.nulls(count, pa.binary())
    # Pieces and the gaps between them are one binary array over the buffer; taking the pieces copies each just once.
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    pieces = pa.BinaryArray.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    even = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pieces.take(pa.array(even, mask=_missing(present, count)))


def _timestamps(times: NDArray[np.int64], present: Present, unit: str) -> pa.Array:
    kind = STORED_SCHEMA.field("event_time").type
    if not present.any():
        return pa.nulls(len(times), kind)
    if unit == "ns":
        return pa.array(times // 1_000, type=kind, mask=_missing(present, len(times)))
    factor = _MICROSECONDS[unit]
    # The limits are divided rather than the times multiplied, which could overflow.
    held = present & (times >= -(-_EARLIEST // factor)) & (times <= _LATEST // factor)
    return pa.array(np.where(held, times, 0) * factor, type=kind, mask=_missing(held, len(times)))


def number_streams(stream_ids: NDArray[np.uint64]) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """A number for each message's stream, counted in order of first appearance, and the stream ids by number."""
    if len(stream_ids) and (stream_ids == stream_ids[0]).all():
        return np.zeros(len(stream_ids), dtype=np.int32), stream_ids[:1].copy()
    encoded = pa.array(stream_ids).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy()


def _spans(stream_ids: NDArray[np.uint64], flags: NDArray[np.uint16]) -> list[StreamSpan]:
    """What :func:`wallaroo_spark.protocol.streams.spans` gives, from columns."""
    count = len(stream_ids)
    if not count:
        return []
    numbers, known = number_streams(stream_ids)
    plain = not _any_flag(flags, Flags.EOS | Flags.EPHEMERAL).any()
    if plain and len(known) == 1:
        return [StreamSpan(int(known[0]), 0, first_lasting=0)]
    rows = np.arange(count)

    def first(chosen: Any) -> NDArray[np.int64]:
        """By stream, the first of the chosen rows; ``count`` where there is none."""
        found = np.full(len(known), count)
        picked = rows[chosen][::-1]
        # Rows are written last to first, so the first of each stream is the one that stays.
        found[numbers[picked]] = picked
        return found

    if plain:
        firsts = zip(known.tolist(), first(slice(None)).tolist(), strict=True)
        return [StreamSpan(stream_id, row, first_lasting=row) for stream_id, row in firsts]
    eos = first(_any_flag(flags, Flags.EOS))
    ephemeral = _any_flag(flags, Flags.EPHEMERAL)
    by_field = (first(slice(None)), eos, first(rows > eos[numbers]), first(ephemeral), first(~ephemeral))
    columns = [[None if row == count else row for row in found.tolist()] for found in by_field]
    return [StreamSpan(*span) for span in zip(known.tolist(), *columns, strict=True)]
