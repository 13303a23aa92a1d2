"""The messages between a worker and a connector sink, and the states of their session, as tables.

The messages are the payloads of MESSAGEs on stream 0. Integers are big-endian, as in all of v3. A missing key of a
table of states is a protocol error. Source: ``docs/protocol.md#sinks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.codecs import Codec, Field, boolean, field, frame_name
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.sessions.states import SESSION, Role, SessionState, SessionTable

CONTROL_STREAM = 0
"""Id of the stream of control messages."""
DATA_STREAM = 1
"""Id of the stream of rows."""
_ORDER = ">"


class Range(NamedTuple):
    """The part of a transaction in one stream: bytes of the sink's output."""

    stream_id: int
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


SinkMessage = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft


def encode_control(message: SinkMessage) -> bytes:
    """Encode the payload. Raises :class:`LocalProtocolError` for a value that does not fit its field."""
    row = _BY_TYPE[type(message)]
    write = frames.Writer(_ORDER).u8(row.tag)
    row.encode(write, message)
    return write.done()


def decode_control(payload: bytes) -> SinkMessage:
    """Decode a payload. Raises :class:`RemoteProtocolError` for an unknown tag or malformed fields."""
    if not payload:
        raise broken(Fault.EMPTY_FRAME, "a message of the control stream is empty; it has at least its tag")
    row = _BY_TAG.get(payload[0])
    if row is None:
        raise broken(Fault.UNKNOWN_TAG, f"tag {payload[0]} is not a message of the control stream")
    message: SinkMessage = row.decode(frames.Reader(payload[1:], _ORDER, frame_name(row.frame)))
    return message


def _read_count(read: frames.Reader, least_bytes: int, things: str) -> range:
    count = read.u32("the count")
    if count * least_bytes > read.left:
        # No memory is reserved for an announced count before so many bytes are there.
        raise broken(Fault.TRUNCATED_FRAME, f"{count} {things} are announced, and {read.left} bytes are there")
    return range(count)


def _texts(name: str) -> Field:
    def write(writer: frames.Writer, texts: tuple[str, ...]) -> None:
        writer.u32(len(texts), "the count")
        for text in texts:
            writer.short_text(text, name)

    return Field(lambda read: tuple(read.short_text(name) for _ in _read_count(read, 2, f"of {name}")), write)


def _read_ranges(read: frames.Reader) -> tuple[Range, ...]:
    count = _read_count(read, 24, "ranges")
    return tuple(Range(read.u64("a stream id"), read.u64("a start"), read.u64("an end")) for _ in count)


def _write_ranges(write: frames.Writer, ranges: tuple[Range, ...]) -> None:
    write.u32(len(ranges), "the count")
    for stream_id, start, end in ranges:
        write.u64(stream_id, "a stream id").u64(start, "a start").u64(end, "an end")


_REQUEST = field("u64", "the request")
_TRANSACTION = field("short_text", "the transaction")
_RANGES = Field(_read_ranges, _write_ranges)
_COMMIT = boolean("the commit byte", "the commit byte")

CONTROL_ROWS = (
    Codec(201, ListUncommitted, (_REQUEST,)),
    Codec(202, ReplyUncommitted, (_REQUEST, _texts("a transaction"))),
    Codec(203, Phase1, (_TRANSACTION, _RANGES)),
    Codec(204, Reply, (_TRANSACTION, _COMMIT)),
    Codec(205, Phase2, (_TRANSACTION, _COMMIT)),
    Codec(206, WorkersLeft, (_REQUEST, _texts("a worker"))),
)
"""The table of control messages."""

_BY_TAG: Mapping[int, Codec] = {row.tag: row for row in CONTROL_ROWS}
_BY_TYPE: Mapping[type[Any], Codec] = {row.frame: row for row in CONTROL_ROWS}


class Phase(StrEnum):
    """The phase of a session's transaction."""

    WRITING = "writing"
    VOTING = "voting"
    VOTED = "voted"


class PhaseEvent(StrEnum):
    """An event that changes the phase."""

    ROWS = "rows"
    PHASE1 = "PHASE1"
    REPLY = "REPLY"
    PHASE2 = "PHASE2"


SINK_SESSION: SessionTable = {
    Role.WORKER: SESSION[Role.CONNECTOR],
    Role.SINK: {
        SessionState.CONNECTED: {frames.Error: SessionState.ERROR},
        SessionState.HANDSHAKE: {frames.Ok: SessionState.STREAMING, frames.Error: SessionState.ERROR},
        SessionState.STREAMING: {
            frames.NotifyAck: SessionState.STREAMING,
            frames.Message: SessionState.STREAMING,
            frames.Ack: SessionState.STREAMING,
            frames.Restart: SessionState.ERROR,
            frames.Error: SessionState.ERROR,
        },
    },
}
"""``[sender][state][frame]`` is the next state. A worker sends what a connector sends to a worker."""

PHASES: Mapping[Phase, Mapping[PhaseEvent, Phase]] = {
    Phase.WRITING: {PhaseEvent.ROWS: Phase.WRITING, PhaseEvent.PHASE1: Phase.VOTING},
    Phase.VOTING: {PhaseEvent.REPLY: Phase.VOTED},
    Phase.VOTED: {PhaseEvent.PHASE2: Phase.WRITING},
}
