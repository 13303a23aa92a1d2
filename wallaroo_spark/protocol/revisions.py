"""The three revisions as tables, and how the first five bytes tell them apart.

A revision is data: a tag → codec table, a stream-state table and the layout of MESSAGE that bulk decoding needs.
Nothing outside this file asks which revision it is. Source: ``docs/protocol.md#framing``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import codecs as c
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.frames import (
    Ack,
    EosMessage,
    Error,
    Flags,
    Frame,
    Hello,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from wallaroo_spark.protocol.sessions.states import DRAFT_BE_STREAMS, DRAFT_LE_STREAMS, V3_STREAMS, StreamTable
from wallaroo_spark.protocol.wire import Reader, Writer, structs

HELLO_LIMIT = 1 << 24
RECOGNITION_BYTES = 5


@dataclass(frozen=True)
class Codec:
    """One row of a revision's table: a tag, its frame, and how the frame's body is read and written."""

    tag: int
    frame: type[Any]
    decode: Callable[[Reader], Frame]
    encode: Callable[[Writer, Any], None]


@dataclass(frozen=True)
class MessageLayout:
    """The layout of a MESSAGE body, for bulk decoding.

    ``known_flags`` is None where there is no flags field (then event time and key are always there, and 0 and the empty
    key mean none). ``ephemeral_has_id`` says whether an EPHEMERAL message carries its id.
    """

    known_flags: Flags | None
    ephemeral_has_id: bool


@dataclass(frozen=True, eq=False)
class Revision:
    """One revision of the protocol, as data."""

    name: str
    byte_order: str
    """``"<"`` or ``">"``, as in ``struct``; for all integers, the length included."""
    rows: tuple[Codec, ...]
    """Its frames."""
    streams: StreamTable
    """The states of its streams."""
    layout: MessageLayout
    """The layout of MESSAGE, for bulk decoding."""
    stream_scope: str
    """``"instance"`` where a stream id belongs to its connector instance, ``"source"`` where to the whole source."""
    end_of_stream: Callable[[int, int], Frame]
    """The frame that closes a stream, from the stream's id and the id of its last message."""
    restart_names_worker: bool = False
    """Whether RESTART can carry the address of another worker."""
    back_after_close: bool = False
    """Whether connectors come back after a plain close of the connection, which some understand better than RESTART."""
    by_tag: Mapping[int, Codec] = field(init=False)
    """``rows`` by their tags."""
    by_frame: Mapping[type[Any], Codec] = field(init=False)
    """``rows`` by the frames' types."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tag", {row.tag: row for row in self.rows})
        object.__setattr__(self, "by_frame", {row.frame: row for row in self.rows})

    def __repr__(self) -> str:
        return f"<Revision {self.name}>"

    def has(self, frame: type[Any]) -> bool:
        """Whether the revision has this frame at all."""
        return frame in self.by_frame

    def encode(self, frame: Frame) -> bytes:
        """The frame's bytes, length included. Raises :class:`LocalProtocolError` for values that it cannot carry."""
        row = self.by_frame.get(type(frame))
        if row is None:
            raise LocalProtocolError(f"{self.name} has no {frame_name(type(frame))} frame")
        write = Writer(self.byte_order).u8(row.tag)
        row.encode(write, frame)
        body = write.done()
        return structs(self.byte_order).u32.pack(len(body)) + body

    def decode(self, tag: int, body: bytes | memoryview) -> Frame:
        """The frame with this tag. Raises :class:`RemoteProtocolError` for a tag that the revision does not have."""
        row = self.by_tag.get(tag)
        if row is None:
            raise broken(Fault.UNKNOWN_TAG, f"tag {tag} is not a frame of {self.name}")
        return row.decode(Reader(body, self.byte_order, frame_name(row.frame)))


_WIRE_NAMES = {NotifyAck: "NOTIFY_ACK", EosMessage: "EOS_MESSAGE"}


def frame_name(frame: type[Any]) -> str:
    """The frame's name as the protocol writes it: ``NOTIFY_ACK``."""
    return _WIRE_NAMES.get(frame, frame.__name__.upper())


def _closing_boundary(stream_id: int, last_id: int) -> Frame:
    return Message(stream_id, last_id, None, Flags.BOUNDARY | Flags.EOS)


def _eos_message(stream_id: int, last_id: int) -> Frame:
    return EosMessage(stream_id, last_id)


_SHARED_DRAFT_ROWS = (
    Codec(ord("H"), Hello, c.decode_hello, c.encode_hello),
    Codec(ord("E"), Error, c.decode_error, c.encode_error),
    Codec(ord("N"), Notify, c.decode_notify, c.encode_notify),
)

DRAFT_LE = Revision(
    name="draft-le",
    byte_order="<",
    rows=(
        *_SHARED_DRAFT_ROWS,
        Codec(ord("O"), Ok, c.decode_ok_draft_le, c.encode_ok_draft_le),
        Codec(ord("M"), Message, c.decode_message_draft_le, c.encode_message_draft_le),
        Codec(ord("A"), Ack, c.decode_ack_draft_le, c.encode_ack_draft_le),
        Codec(ord("!"), Nack, c.decode_nack, c.encode_nack),
    ),
    streams=DRAFT_LE_STREAMS,
    layout=MessageLayout(known_flags=Flags(31), ephemeral_has_id=True),
    stream_scope="instance",
    end_of_stream=_closing_boundary,
)

DRAFT_BE = Revision(
    name="draft-be",
    byte_order=">",
    rows=(
        *_SHARED_DRAFT_ROWS,
        Codec(ord("O"), Ok, c.decode_ok_draft_be, c.encode_ok_draft_be),
        Codec(ord("M"), Message, c.decode_message_draft_be, c.encode_message_draft_be),
        Codec(ord("A"), Ack, c.decode_ack, c.encode_ack),
        Codec(ord("!"), Restart, c.decode_restart_draft_be, c.encode_restart_draft_be),
    ),
    streams=DRAFT_BE_STREAMS,
    layout=MessageLayout(known_flags=Flags(63), ephemeral_has_id=False),
    stream_scope="instance",
    end_of_stream=_closing_boundary,
)

V3 = Revision(
    name="v3",
    byte_order=">",
    rows=(
        Codec(0, Hello, c.decode_hello, c.encode_hello),
        Codec(1, Ok, c.decode_ok_v3, c.encode_ok_v3),
        Codec(2, Error, c.decode_error, c.encode_error),
        Codec(3, Notify, c.decode_notify, c.encode_notify),
        Codec(4, NotifyAck, c.decode_notify_ack, c.encode_notify_ack),
        Codec(5, Message, c.decode_message_v3, c.encode_message_v3),
        Codec(6, Ack, c.decode_ack, c.encode_ack),
        Codec(7, Restart, c.decode_restart_v3, c.encode_restart_v3),
        Codec(8, EosMessage, c.decode_eos, c.encode_eos),
    ),
    streams=V3_STREAMS,
    layout=MessageLayout(known_flags=None, ephemeral_has_id=True),
    stream_scope="source",
    end_of_stream=_eos_message,
    restart_names_worker=True,
    back_after_close=True,
)

REVISIONS: Mapping[str, Revision] = {revision.name: revision for revision in (DRAFT_LE, DRAFT_BE, V3)}

_BY_ORDER_AND_TAG = {(r.byte_order, r.by_frame[Hello].tag): r for r in REVISIONS.values()}


def recognise(start: bytes) -> Revision | None:
    """The revision that a connection's first five bytes belong to; None while there are fewer.

    A HELLO is well under 16 MiB, so normally only one byte order gives a possible length. Where both do (big-endian 256
    is little-endian 65,536) the shorter length counts. Raises :class:`RemoteProtocolError` for anything else; such a
    peer is closed without a reply.
    """
    if len(start) < RECOGNITION_BYTES:
        return None
    tag = start[4]
    lengths = {order: structs(order).u32.unpack(start[:4])[0] for order in (">", "<")}
    for order in sorted(lengths, key=lambda order: lengths[order]):
        revision = _BY_ORDER_AND_TAG.get((order, tag))
        if revision and 0 < lengths[order] < HELLO_LIMIT:
            return revision
    raise broken(Fault.NOT_THIS_PROTOCOL, "the first five bytes are not the start of a HELLO in any revision")
