"""The three revisions as tables, and their recognition by the first five bytes of a connection.

A revision is data: a tag → codec table, a stream-state table and the layout of MESSAGE for bulk decoding. No code
outside this file asks for the revision's name. Source: ``docs/protocol.md#framing``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wallaroo_spark.errors import LocalProtocolError
from wallaroo_spark.protocol import codecs as c
from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.codecs import Codec, MessageCodec, MessageLayout, frame_name
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.sessions.states import DRAFT_BE_STREAMS, DRAFT_LE_STREAMS, V3_STREAMS, StreamTable

HELLO_LIMIT = 1 << 24
"""A length below this limit is a plausible length of a HELLO (2^24: the first byte of a big-endian u32 is 0)."""
RECOGNITION_BYTES = 5
"""Bytes needed to recognise a revision: the length field and the tag."""


@dataclass(frozen=True, eq=False)
class Revision:
    """One revision of the protocol, as data."""

    name: str
    """Name of the revision: ``draft-le``, ``draft-be`` or ``v3``."""
    byte_order: str
    """``"<"`` or ``">"``, as in ``struct``, for all integers including the length field."""
    rows: tuple[Codec | MessageCodec, ...]
    """The codecs of its frames."""
    streams: StreamTable
    """The table of its stream states."""
    layout: MessageLayout
    """The layout of MESSAGE, for bulk decoding."""
    stream_scope: str
    """Scope in which a stream id is unique: ``"instance"`` (connector instance) or ``"source"`` (the whole source)."""
    back_after_close: bool = False
    """Whether connectors reconnect after a plain close; some handle it better than RESTART."""
    by_tag: Mapping[int, Codec | MessageCodec] = field(init=False)
    """``rows`` by tag."""
    by_frame: Mapping[type[Any], Codec | MessageCodec] = field(init=False)
    """``rows`` by frame type."""
    message_tag: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_tag", {row.tag: row for row in self.rows})
        object.__setattr__(self, "by_frame", {row.frame: row for row in self.rows})
        object.__setattr__(self, "message_tag", self.by_frame[frames.Message].tag)

    def __repr__(self) -> str:
        return f"<Revision {self.name}>"

    def has(self, frame: type[Any]) -> bool:
        """Whether the revision has this frame."""
        return frame in self.by_frame

    def row(self, tag: int) -> Codec | MessageCodec:
        """The codec of a tag. Raises :class:`RemoteProtocolError` for a tag that the revision does not have."""
        row = self.by_tag.get(tag)
        if row is None:
            raise broken(Fault.UNKNOWN_TAG, f"tag {tag} is not a frame of {self.name}")
        return row

    def encode(self, frame: frames.Frame) -> bytes:
        """Encode a frame with its length field. Raises :class:`LocalProtocolError` for values that the revision cannot
        carry.
        """
        row = self.by_frame.get(type(frame))
        if row is None:
            raise LocalProtocolError(f"{self.name} has no {frame_name(type(frame))} frame", code="not-in-revision")
        write = frames.Writer(self.byte_order).u8(row.tag)
        row.encode(write, frame)
        body = write.done()
        return frames.structs(self.byte_order).u32.pack(len(body)) + body

    def decode(self, tag: int, body: bytes | memoryview) -> frames.Frame:
        """Decode the body of a frame. Raises :class:`RemoteProtocolError` for a tag that the revision does not have."""
        row = self.row(tag)
        return row.decode(frames.Reader(body, self.byte_order, frame_name(row.frame)))

    def end_of_stream(
        self, stream_id: int, last_id: int, *, ephemeral: bool = False
    ) -> frames.Message | frames.EosMessage:
        """The frame that closes a stream whose last message has the id ``last_id``."""
        if self.has(frames.EosMessage):
            return frames.EosMessage(stream_id, last_id)
        flags = frames.Flags.BOUNDARY | frames.Flags.EOS
        # A stream may not mix ephemeral messages with others.
        return frames.Message(stream_id, last_id, None, flags | frames.Flags.EPHEMERAL if ephemeral else flags)


_HELLO_FIELDS = (
    c.field("short_text", "the version"),
    c.field("short_bytes", "the cookie"),
    c.field("short_text", "the program name"),
    c.field("short_text", "the instance name"),
)
_NOTIFY_FIELDS = (c.STREAM_ID, c.STREAM_NAME, c.REFERENCE)

_SHARED_DRAFT_ROWS = (
    Codec(ord("H"), frames.Hello, _HELLO_FIELDS),
    Codec(ord("E"), frames.Error, (c.REASON,)),
    Codec(ord("N"), frames.Notify, _NOTIFY_FIELDS),
)
_DRAFT_LE_LAYOUT = MessageLayout(known_flags=frames.Flags(31), ephemeral_has_id=True)
_DRAFT_BE_LAYOUT = MessageLayout(known_flags=frames.Flags(63), ephemeral_has_id=False)
_V3_LAYOUT = MessageLayout(known_flags=None, ephemeral_has_id=True)

DRAFT_LE = Revision(
    name="draft-le",
    byte_order="<",
    rows=(
        *_SHARED_DRAFT_ROWS,
        Codec(ord("O"), frames.Ok, (c.CREDITS, c.POSITIONS)),
        MessageCodec(ord("M"), _DRAFT_LE_LAYOUT),
        Codec(ord("A"), frames.Ack, (c.CREDITS, c.PAIRS)),
        Codec(ord("!"), frames.Nack, (c.CREDITS, c.STREAM_ID, c.REFERENCE)),
    ),
    streams=DRAFT_LE_STREAMS,
    layout=_DRAFT_LE_LAYOUT,
    stream_scope="instance",
)

DRAFT_BE = Revision(
    name="draft-be",
    byte_order=">",
    rows=(
        *_SHARED_DRAFT_ROWS,
        Codec(ord("O"), frames.Ok, (c.CREDITS, c.NAMED_POSITIONS)),
        MessageCodec(ord("M"), _DRAFT_BE_LAYOUT),
        Codec(ord("A"), frames.Ack, (c.CREDITS, c.COUNTED_PAIRS)),
        Codec(ord("!"), frames.Restart, ()),
    ),
    streams=DRAFT_BE_STREAMS,
    layout=_DRAFT_BE_LAYOUT,
    stream_scope="instance",
)

V3 = Revision(
    name="v3",
    byte_order=">",
    rows=(
        Codec(0, frames.Hello, _HELLO_FIELDS),
        Codec(1, frames.Ok, (c.CREDITS,)),
        Codec(2, frames.Error, (c.REASON,)),
        Codec(3, frames.Notify, _NOTIFY_FIELDS),
        Codec(4, frames.NotifyAck, (c.SUCCESS, c.STREAM_ID, c.REFERENCE)),
        MessageCodec(5, _V3_LAYOUT),
        Codec(6, frames.Ack, (c.CREDITS, c.COUNTED_PAIRS)),
        Codec(7, frames.Restart, (c.ADDRESS,)),
        Codec(8, frames.EosMessage, (c.STREAM_ID, c.LAST_ID)),
    ),
    streams=V3_STREAMS,
    layout=_V3_LAYOUT,
    stream_scope="source",
    back_after_close=True,
)

REVISIONS: Mapping[str, Revision] = {revision.name: revision for revision in (DRAFT_LE, DRAFT_BE, V3)}

_BY_ORDER_AND_TAG = {(r.byte_order, r.by_frame[frames.Hello].tag): r for r in REVISIONS.values()}


def recognise(start: bytes) -> Revision | None:
    """Recognise a revision by the first five bytes of a connection; None while there are fewer.

    A HELLO is far shorter than 16 MiB, so usually only one byte order gives a plausible length. Where both do
    (big-endian 256 is little-endian 65,536), the shorter length decides. Raises :class:`RemoteProtocolError` for other
    bytes; such a peer is closed without a reply.
    """
    if len(start) < RECOGNITION_BYTES:
        return None
    tag = start[4]
    lengths = {order: frames.structs(order).u32.unpack(start[:4])[0] for order in (">", "<")}
    for order in sorted(lengths, key=lambda order: lengths[order]):
        revision = _BY_ORDER_AND_TAG.get((order, tag))
        if revision and 0 < lengths[order] < HELLO_LIMIT:
            return revision
    raise broken(Fault.NOT_THIS_PROTOCOL, "the first five bytes are not the start of a HELLO in any revision")
