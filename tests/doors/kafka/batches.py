"""Record batches for tests, written independently of the code that reads them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence

import google_crc32c
import pyarrow as pa

Record = tuple[bytes | None, bytes | None]


def varint(value: int) -> bytes:
    """A signed number of variable length."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _text(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(number: int, key: bytes | None, value: bytes | None, headers: Sequence[Record] = (), time: int = 0) -> bytes:
    """One record with its length."""
    body = b"\0" + varint(time) + varint(number) + _text(key) + _text(value) + varint(len(headers))
    for name, content in headers:
        body += _text(name) + _text(content)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes | None] = (b"x",),
    *,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    codec: int = 0,
    attributes: int = 0,
    records: bytes | None = None,
    count: int | None = None,
    base_time: int = 1_700_000_000_000,
    base_offset: int = 0,
    magic: int = 2,
    last_delta: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """A record batch, sound unless a part is given."""
    count = len(values) if count is None else count
    if records is None:
        records = b"".join(record(number, None, value, time=number) for number, value in enumerate(values))
    records = compressed(records, codec)
    tail = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        count - 1 if last_delta is None else last_delta,
        base_time,
        base_time + max(count - 1, 0),
        producer,
        epoch,
        sequence,
        count,
    )
    tail += records
    crc = google_crc32c.value(tail) if checksum is None else checksum
    return struct.pack(">qiibI", base_offset, len(tail) + 9, -1, magic, crc) + tail


def compressed(records: bytes, codec: int) -> bytes:
    """Records as a client compresses them; snappy in the blocks of Java's library."""
    match codec:
        case 1:
            return gzip.compress(records, mtime=0)
        case 2:
            out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
            for at in range(0, len(records), 32 << 10):
                block = pa.compress(records[at : at + (32 << 10)], codec="snappy", asbytes=True)
                out += struct.pack(">i", len(block)) + block
            return out
        case 3 | 4:
            sink = pa.BufferOutputStream()
            with pa.CompressedOutputStream(sink, "lz4" if codec == 3 else "zstd") as stream:
                stream.write(records)
            return sink.getvalue().to_pybytes()
    return records
