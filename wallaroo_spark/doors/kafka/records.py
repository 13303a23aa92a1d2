"""The records of a batch as columns; in Spark's reading tasks.

The worker keeps batches as they came, so everything here is as the producer says: each length is compared with the
bytes that there are, and a compressed batch is expanded up to a limit. The starts of records are found one by one,
because each depends on the length of the record before it; all fields of all records are then read together.
Source: ``docs/doors/kafka.md``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wallaroo_spark.columnar.schema import HEADERS
from wallaroo_spark.doors.kafka.record_batch import HEAD_BYTES, BatchHead, head_of

MOST_RATIO = 1000
"""The most bytes that one compressed byte may become, above ``FREE_BYTES``. Deflate's own limit is about 1030."""
FREE_BYTES = 16 << 20
"""Expanded bytes that no ratio is asked for."""
MOST_BYTES = 256 << 20
"""The most bytes that a batch may become. A choice: a task holds one expanded batch at a time."""
TOGETHER = 4 << 20
"""Expanded bytes of the batches that are read in one pass, because a pass has a fixed cost. A choice."""
_WORTH = 16
"""Records of equal size from which they are found together; so many are found one by one before the next try."""
_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_HEAD = 16
_LONGEST_VARINT = 10
_NO_BYTES = np.zeros(_LONGEST_VARINT, np.uint8)
Positions = NDArray[np.int64]


class Unreadable(Exception):
    """A batch that does not have the records that its head announces."""


@dataclass(frozen=True, eq=False)
class RecordColumns:
    """The records of some batches, in order."""

    counts: Positions
    """The number of records of each batch."""
    times: Positions
    """The time of each record, in milliseconds since 1970 UTC."""
    key: pa.Array
    """The keys; null for a record without one."""
    value: pa.Array
    """The values; null for a record without one."""
    headers: pa.Array | None
    """The headers of each record, as Spark's Kafka source has them: null without any. None where not asked for."""


def read_records(batch: bytes, *, headers: bool = False) -> RecordColumns:
    """The records of a batch whose head was checked. Raises :class:`Unreadable`."""
    return _read([_expand(batch)], headers)


def read_batches(
    batches: Sequence[bytes], *, headers: bool = False
) -> Iterator[tuple[Sequence[int], RecordColumns | Unreadable]]:
    """The records of many batches, of several in one pass; each with the indexes of its batches, in order.

    An unreadable batch comes alone, with its error.
    """
    chosen: list[int] = []
    parts: list[_ExpandedBatch] = []
    for index, batch in enumerate(batches):
        try:
            part = _expand(batch)
        except Unreadable as error:
            yield from _read_chosen(chosen, parts, headers)
            chosen, parts = [], []
            yield [index], error
            continue
        if chosen and sum(len(one.data) for one in parts) + len(part.data) > TOGETHER:
            yield from _read_chosen(chosen, parts, headers)
            chosen, parts = [], []
        chosen.append(index)
        parts.append(part)
    yield from _read_chosen(chosen, parts, headers)


def _read_chosen(
    chosen: Sequence[int], parts: Sequence[_ExpandedBatch], headers: bool
) -> Iterator[tuple[Sequence[int], RecordColumns | Unreadable]]:
    if not chosen:
        return
    try:
        yield chosen, _read(parts, headers)
    except Unreadable as error:
        if len(chosen) == 1:
            yield chosen, error
            return
        # One of them cannot be read; each alone shows which.
        for index, part in zip(chosen, parts, strict=True):
            yield from _read_chosen([index], [part], headers)


class _ExpandedBatch(NamedTuple):
    """The expanded records of one batch."""

    head: BatchHead
    data: bytes


def _expand(batch: bytes) -> _ExpandedBatch:
    head = head_of(batch)
    try:
        return _ExpandedBatch(head, _expanded(batch[HEAD_BYTES:], head.codec))
    except (pa.ArrowException, OSError, zlib.error, struct.error, EOFError) as error:
        raise Unreadable(f"the records cannot be expanded: {error}") from None


def _read(parts: Sequence[_ExpandedBatch], headers: bool) -> RecordColumns:
    data = parts[0].data if len(parts) == 1 else b"".join(part.data for part in parts)
    found = np.concatenate([np.frombuffer(data, np.uint8), _NO_BYTES])
    bounds: list[Positions] = []
    at = 0
    for part in parts:
        bounds += _bounds(found, data, at, at + len(part.data), part.head.count)
        at += len(part.data)
    starts, ends = np.concatenate(bounds[0::2]), np.concatenate(bounds[1::2])
    counts = np.array([part.head.count for part in parts])
    # A record begins with its attributes, which mean nothing.
    deltas, begins = _varints(found, starts + 1)
    order, begins = _varints(found, begins)
    if not np.array_equal(order, numbered(counts)):
        raise Unreadable("the offsets of the records are not those of a new batch")
    key, begins = _pieces(data, found, begins, ends)
    value, begins = _pieces(data, found, begins, ends)
    numbers, begins = _varints(found, begins)
    if (numbers < 0).any() or (begins > ends).any() or (begins[numbers == 0] != ends[numbers == 0]).any():
        raise Unreadable("the fields of a record do not end with the record")
    times = np.repeat([part.head.base_time for part in parts], counts) + deltas
    if any(part.head.append_time for part in parts):
        fixed = np.repeat([part.head.append_time for part in parts], counts)
        times = np.where(fixed, np.repeat([part.head.max_time for part in parts], counts), times)
    return RecordColumns(counts, times, key, value, _headers(data, numbers, begins, ends) if headers else None)


def numbered(counts: Positions) -> Positions:
    """The numbers from 0 for each batch, ``count`` of them, in one column."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)


def _bounds(found: NDArray[np.uint8], data: bytes, at: int, end: int, count: int) -> list[Positions]:
    """Where the records of a batch begin, behind their lengths, and where they end, as pairs of columns.

    Records of equal size are found together: while the length stands again where the record ends, the next one follows.
    """
    columns: list[Positions] = []
    starts: list[int] = []
    ends: list[int] = []
    left, alone = count, 0
    while left:
        if at >= end:
            raise Unreadable(f"the batch announces {count} records and has {count - left}")
        begin, length = at, data[at]
        at += 1
        if length >= 0x80:
            length, at = _long(data, at, length)
        length = (length >> 1) ^ -(length & 1)
        if length < 0 or length > end - at:
            raise Unreadable(f"a record of {length} bytes does not fit into the {end - at} bytes that are left")
        if not alone:
            head, stride = at - begin, at - begin + length
            many = min(left, (end - begin) // stride)
            same = _equal(found, begin, stride, many, head)
            if same >= _WORTH:
                columns += [np.array(starts, np.int64), np.array(ends, np.int64)]
                starts, ends = [], []
                run = begin + head + stride * np.arange(same)
                columns += [run, run + length]
                at = begin + stride * same
                left -= same
                continue
            alone = _WORTH
        alone -= 1
        starts.append(at)
        at += length
        ends.append(at)
        left -= 1
    if at != end:
        raise Unreadable(f"{end - at} bytes follow the last record")
    return [*columns, np.array(starts, np.int64), np.array(ends, np.int64)]


def _equal(found: NDArray[np.uint8], begin: int, stride: int, many: int, head: int) -> int:
    """How many records of this stride follow each other, with the same length in front of each."""
    same = many
    for byte in range(begin, begin + head):
        column = found[byte : byte + stride * (same - 1) + 1 : stride]
        differing = np.flatnonzero(column != column[0])
        if len(differing):
            same = int(differing[0])
    return same


def _long(data: bytes, at: int, first: int) -> tuple[int, int]:
    value = first & 0x7F
    for shift in range(7, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Unreadable("a length has no end")


def _varints(data: NDArray[np.uint8], at: Positions) -> tuple[Positions, Positions]:
    """The signed numbers of variable length at these positions, and the positions behind them.

    A position behind the data gives any number; who uses the number compares the position behind it.
    """
    limit = len(data) - 1
    byte = data[np.minimum(at, limit)]
    value = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    more = np.flatnonzero(byte >= 0x80)
    shift = 7
    while len(more):
        if shift > 63:
            raise Unreadable("a number has no end")
        byte = data[np.minimum(at[more], limit)]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    signed = (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)
    return signed, at


def _pieces(data: bytes, found: NDArray[np.uint8], at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
    """The bytes whose lengths are at these positions, null where a length is below 0; and the positions behind them."""
    lengths, begins = _varints(found, at)
    if (begins > ends).any() or (lengths > ends - begins).any():
        raise Unreadable("a key or a value is longer than its record")
    absent = lengths < 0
    stops = begins + np.maximum(lengths, 0)
    if absent.all():
        return pa.nulls(len(at), pa.binary()), stops
    # An array over the whole data alternates between pieces and the gaps between them.
    offsets = np.empty(2 * len(at), np.int32)
    offsets[0::2], offsets[1::2] = begins, stops
    both = pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    chosen = np.arange(0, len(offsets), 2, dtype=np.int32)
    return both.take(pa.array(chosen, mask=absent if absent.any() else None)), stops


def _headers(data: bytes, numbers: Positions, at: Positions, ends: Positions) -> pa.Array:
    """The headers of each record. They are read one by one, because few records have any."""
    rows = [
        _some(data, number, begin, end) if number else None
        for number, begin, end in zip(numbers.tolist(), at.tolist(), ends.tolist(), strict=True)
    ]
    return pa.array(rows, HEADERS.type)


def _some(data: bytes, number: int, at: int, end: int) -> list[dict[str, object]]:
    # A header has two bytes at least.
    if number > (end - at) // 2:
        raise Unreadable(f"a record announces {number} headers and has {end - at} bytes for them")
    found: list[dict[str, object]] = []
    for _ in range(number):
        key, at = _piece(data, at, end)
        value, at = _piece(data, at, end)
        if key is None:
            raise Unreadable("a header has no key")
        found.append({"key": key.decode("utf-8", "replace"), "value": value})
    if at != end:
        raise Unreadable("the headers of a record do not end with the record")
    return found


def _piece(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    if at >= end:
        raise Unreadable("the headers of a record end within a header")
    length, at = _long(data, at + 1, data[at]) if data[at] >= 0x80 else (data[at], at + 1)
    length = (length >> 1) ^ -(length & 1)
    if length > end - at:
        raise Unreadable("a header is longer than its record")
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _expanded(data: bytes, codec: int) -> bytes:
    """The records of a batch without compression."""
    most = min(MOST_BYTES, FREE_BYTES + MOST_RATIO * len(data))
    match codec:
        case 0:
            return data
        case 1:
            return _gunzipped(data, most)
        case 2:
            return _unsnapped(data, most)
    with pa.CompressedInputStream(pa.BufferReader(data), "lz4" if codec == 3 else "zstd") as stream:
        return _limited(stream.read(most + 1), most)


def _gunzipped(data: bytes, most: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    found = _limited(stream.decompress(data, most + 1), most)
    if not stream.eof:
        raise Unreadable("the compressed records have no end")
    return found


def _unsnapped(data: bytes, most: int) -> bytes:
    """Snappy as Java's library frames it, in blocks, or as one block."""
    if not data.startswith(_SNAPPY_MAGIC):
        return _snappy_block(data, most)
    parts, at, size = [], _SNAPPY_HEAD, 0
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        if not 0 < length <= len(data) - at:
            raise Unreadable("a block of the compressed records is longer than the batch")
        part = _snappy_block(data[at : at + length], most - size)
        parts.append(part)
        size += len(part)
        at += length
    return b"".join(parts)


def _snappy_block(data: bytes, most: int) -> bytes:
    """One block, which begins with its expanded size."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > most:
        raise Unreadable(f"the records become more than {most} bytes")
    return bytes(pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True))


def _limited(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise Unreadable(f"the records become more than {most} bytes")
    return data
