"""The messages between a worker and a connector sink on stream 0, which are the payloads of its MESSAGEs.

Integers are big-endian, as in all of v3. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.wire import Reader, Writer

CONTROL_STREAM = 0
"""Id of the stream of control messages."""
DATA_STREAM = 1
"""Id of the stream of rows."""
_ORDER = ">"


class Range(NamedTuple):
    """The part of a transaction in one stream: bytes of the sink's output."""

    stream_id: int
    """Id of the stream."""
    start: int
    """Offset in front of the first byte."""
    end: int
    """Offset behind the last byte."""


@dataclass(frozen=True, slots=True)
class ListUncommitted:
    """From the worker: list the transactions that are prepared and not decided."""

    request: int
    """Number that the answer repeats."""


@dataclass(frozen=True, slots=True)
class ReplyUncommitted:
    """From the sink: the transactions that are prepared and not decided."""

    request: int
    """The number in the request."""
    transactions: tuple[str, ...] = ()
    """Ids of the transactions."""


@dataclass(frozen=True, slots=True)
class Phase1:
    """From the worker: prepare these ranges. It sends no rows before PHASE2."""

    transaction: str
    """Id of the transaction."""
    ranges: tuple[Range, ...] = ()
    """Its part in each stream."""


@dataclass(frozen=True, slots=True)
class Reply:
    """From the sink: its vote. With ``commit`` the ranges are on its disk, and no reader sees them yet."""

    transaction: str
    """Id of the transaction."""
    commit: bool
    """Whether the sink votes to commit."""


@dataclass(frozen=True, slots=True)
class Phase2:
    """From the worker: the decision."""

    transaction: str
    """Id of the transaction."""
    commit: bool
    """Whether the transaction is committed."""


@dataclass(frozen=True, slots=True)
class WorkersLeft:
    """From the worker: these workers have ended permanently."""

    request: int
    """Number of the request."""
    workers: tuple[str, ...] = ()
    """Names of the workers."""


SinkMessage = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft


class _Row(NamedTuple):
    """One row of the table of control messages."""

    tag: int
    """First byte of the payload."""
    name: str
    """Name of the message in the protocol."""
    message: type[Any]
    """Its type."""
    decode: Callable[[Reader], SinkMessage]
    """Decodes the bytes behind the tag."""
    encode: Callable[[Writer, Any], None]
    """Encodes the bytes behind the tag."""


def encode_control(message: SinkMessage) -> bytes:
    """Encode the payload. Raises :class:`LocalProtocolError` for a value that does not fit its field."""
    row = _BY_TYPE[type(message)]
    write = Writer(_ORDER).u8(row.tag)
    row.encode(write, message)
    return write.done()


def decode_control(payload: bytes) -> SinkMessage:
    """Decode a payload. Raises :class:`RemoteProtocolError` for an unknown tag or malformed fields."""
    if not payload:
        raise broken(Fault.EMPTY_FRAME, "a message of the control stream is empty; it has at least its tag")
    row = _BY_TAG.get(payload[0])
    if row is None:
        raise broken(Fault.UNKNOWN_TAG, f"tag {payload[0]} is not a message of the control stream")
    read = Reader(payload[1:], _ORDER, row.name)
    message = row.decode(read)
    read.finish()
    return message


def control_name(message: SinkMessage) -> str:
    """The message's name in the protocol, for example ``PHASE1``."""
    return _BY_TYPE[type(message)].name


def _decode_list(read: Reader) -> SinkMessage:
    return ListUncommitted(read.u64("the request"))


def _encode_list(write: Writer, message: ListUncommitted) -> None:
    write.u64(message.request, "the request")


def _texts(read: Reader, name: str) -> tuple[str, ...]:
    count = read.u32("the count")
    if count * 2 > read.left:
        # No memory is reserved for an announced count; each text needs at least its length field.
        raise broken(Fault.TRUNCATED_FRAME, f"{count} of {name} are announced, and {read.left} bytes are there")
    return tuple(read.short_text(name) for _ in range(count))


def _write_texts(write: Writer, texts: tuple[str, ...], name: str) -> None:
    write.u32(len(texts), "the count")
    for text in texts:
        write.short_text(text, name)


def _decode_uncommitted(read: Reader) -> SinkMessage:
    return ReplyUncommitted(read.u64("the request"), _texts(read, "a transaction"))


def _encode_uncommitted(write: Writer, message: ReplyUncommitted) -> None:
    _write_texts(write.u64(message.request, "the request"), message.transactions, "a transaction")


def _decode_phase1(read: Reader) -> SinkMessage:
    transaction, count = read.short_text("the transaction"), read.u32("the count")
    if count * 24 > read.left:
        raise broken(Fault.TRUNCATED_FRAME, f"PHASE1 announces {count} ranges, and {read.left} bytes are there")
    numbers = ("a stream id", "a start", "an end")
    return Phase1(transaction, tuple(Range(*(read.u64(name) for name in numbers)) for _ in range(count)))


def _encode_phase1(write: Writer, message: Phase1) -> None:
    write.short_text(message.transaction, "the transaction").u32(len(message.ranges), "the count")
    for stream_id, start, end in message.ranges:
        write.u64(stream_id, "a stream id").u64(start, "a start").u64(end, "an end")


def _verdict(read: Reader) -> tuple[str, bool]:
    transaction, commit = read.short_text("the transaction"), read.u8("the commit byte")
    if commit > 1:
        raise broken(Fault.WRONG_STATE, f"the commit byte is {commit}; it is 0 or 1")
    return transaction, bool(commit)


def _decode_reply(read: Reader) -> SinkMessage:
    return Reply(*_verdict(read))


def _decode_phase2(read: Reader) -> SinkMessage:
    return Phase2(*_verdict(read))


def _encode_verdict(write: Writer, message: Reply | Phase2) -> None:
    write.short_text(message.transaction, "the transaction").u8(int(message.commit))


def _decode_left(read: Reader) -> SinkMessage:
    return WorkersLeft(read.u64("the request"), _texts(read, "a worker"))


def _encode_left(write: Writer, message: WorkersLeft) -> None:
    _write_texts(write.u64(message.request, "the request"), message.workers, "a worker")


CONTROL_ROWS = (
    _Row(201, "LIST_UNCOMMITTED", ListUncommitted, _decode_list, _encode_list),
    _Row(202, "REPLY_UNCOMMITTED", ReplyUncommitted, _decode_uncommitted, _encode_uncommitted),
    _Row(203, "PHASE1", Phase1, _decode_phase1, _encode_phase1),
    _Row(204, "REPLY", Reply, _decode_reply, _encode_verdict),
    _Row(205, "PHASE2", Phase2, _decode_phase2, _encode_verdict),
    _Row(206, "WORKERS_LEFT", WorkersLeft, _decode_left, _encode_left),
)
"""The table of control messages: tag, name, type, decoder and encoder."""

_BY_TAG: Mapping[int, _Row] = {row.tag: row for row in CONTROL_ROWS}
_BY_TYPE: Mapping[type[Any], _Row] = {row.message: row for row in CONTROL_ROWS}
