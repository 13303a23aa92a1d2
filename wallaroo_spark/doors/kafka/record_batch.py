"""The head of a record batch, and the checks of a batch before a worker accepts it. The records stay as they came.

The order of the checks, with their codes, is that of ``docs/doors/kafka.md``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from wallaroo_spark.doors.kafka.apis import Code

_HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_BYTES = _HEAD.size
"""Bytes of a batch in front of its records: 61."""
_CHECKED_FROM = 21
"""The checksum covers the batch from this byte on."""
_LENGTH_BEHIND = 12
"""The length field counts the bytes behind it and behind the base offset."""
_CODEC, _LOG_APPEND, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_ZSTD = 4
_ZSTD_SINCE = 7
"""The first version of Produce with zstd."""


class BatchRefused(Exception):
    """A batch that is not accepted, with the code and the sentence of the answer."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class BatchHead:
    """What a worker knows of a record batch."""

    codec: int
    """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    producer: int
    """The producer's id; -1 for a producer without one."""
    epoch: int
    """The producer's epoch; -1 without an id."""
    sequence: int
    """The sequence of the first record, 0 to 2³¹−1; -1 without an id."""
    count: int
    """The number of records."""
    base_time: int
    """The time from which the records' times are counted, in milliseconds since 1970 UTC."""
    max_time: int
    """The greatest time of a record; the time of all of them with ``append_time``."""
    append_time: bool
    """Whether all records have the time ``max_time``."""


def head_of(batch: bytes) -> BatchHead:
    """The head of a batch that has one. Nothing is checked."""
    found = _HEAD.unpack_from(batch)
    return BatchHead(
        codec=found[5] & _CODEC,
        producer=found[9],
        epoch=found[10],
        sequence=found[11],
        count=found[12],
        base_time=found[7],
        max_time=found[8],
        append_time=bool(found[5] & _LOG_APPEND),
    )


def check(batch: bytes | None, version: int, most_bytes: int) -> BatchHead:
    """The head of a batch that may be accepted; ``version`` is that of its Produce request.

    Raises :class:`BatchRefused`. Records behind the first batch are refused too, because a request has one batch for
    each partition.
    """
    if batch is None or len(batch) < HEAD_BYTES:
        size = 0 if batch is None else len(batch)
        raise BatchRefused(Code.INVALID_RECORD, f"{size} bytes are no record batch, whose head has {HEAD_BYTES}")
    if len(batch) > most_bytes:
        raise BatchRefused(
            Code.MESSAGE_TOO_LARGE, f"a batch of {len(batch)} bytes is above the limit kafka.maxBatch of {most_bytes}"
        )
    base_offset, length, _, magic, checksum, attributes, last_delta, _, _, producer, epoch, sequence, count = (
        _HEAD.unpack_from(batch)
    )
    if base_offset:
        raise BatchRefused(Code.INVALID_RECORD, f"the base offset of a produced batch is 0, and not {base_offset}")
    if length != len(batch) - _LENGTH_BEHIND:
        raise BatchRefused(
            Code.INVALID_RECORD,
            f"the batch says that {length} bytes follow, and {len(batch) - _LENGTH_BEHIND} do; a request has one batch "
            "for each partition",
        )
    if magic != 2:
        raise BatchRefused(
            Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"format {magic} is older than the record batches (2) that are served"
        )
    if _crc32c(batch[_CHECKED_FROM:]) != checksum:
        raise BatchRefused(Code.CORRUPT_MESSAGE, "the checksum of the batch is wrong")
    if attributes & _CONTROL:
        raise BatchRefused(Code.INVALID_RECORD, "a producer sends no control batch")
    if attributes & _TRANSACTIONAL:
        raise BatchRefused(Code.UNSUPPORTED_VERSION, "transactions are not served; use an idempotent producer")
    codec = attributes & _CODEC
    if codec > _ZSTD or (codec == _ZSTD and version < _ZSTD_SINCE):
        raise BatchRefused(Code.UNSUPPORTED_COMPRESSION, f"codec {codec} is not served in version {version} of Produce")
    if count < 1 or last_delta != count - 1:
        raise BatchRefused(
            Code.INVALID_RECORD, f"a batch of {count} records cannot have the last offset delta {last_delta}"
        )
    if producer >= 0 and (epoch < 0 or sequence < 0):
        raise BatchRefused(Code.INVALID_RECORD, f"producer {producer} has epoch {epoch} and sequence {sequence}")
    return head_of(batch)


def _crc32c(data: bytes) -> int:
    # Imported where a batch arrives, because only a worker with this door needs it.
    import google_crc32c

    return int(google_crc32c.value(data))
