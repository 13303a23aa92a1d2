"""Sessions whose streams have channels of their own, as over QUIC: which frame goes where, and what a worker checks.

Over TCP the frames of a session are one sequence of bytes. Over channels the entrypoint carries the frames of the
session, one a message; the message of a NOTIFY attaches a channel, and that carries the MESSAGEs of the stream and its
end. So a lost packet delays the streams whose bytes were in it, and no other. A worker hands the bytes of all channels
to one session, in the order in which they come. That is sound because of three rules: a message has whole frames, a
channel has frames of its own stream alone, and the next NOTIFY of a stream waits for the end of the stream's channel.

Source: ``docs/protocol.md#over-quic``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from wallaroo_spark.protocol import frames
from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.framing import HEADER_BYTES, LENGTH_BYTES
from wallaroo_spark.protocol.revisions import REVISIONS, Revision

HEADER = "wallaroo-6f2c1e"
"""The header by which both sides say that they speak this protocol; its value is the name of the revision."""
MESSAGE_BYTES = 64 * 1024
"""Bytes of frames that are sent as one message of a channel; a longer frame is a message by itself.

A choice: ``COLLECTED_BYTES`` of a connector, so that a run is usually one message.
"""
_FLAGS_BYTES = 2
_STREAM_BYTES = 8


class PartKind(Enum):
    """What the frames of a part are."""

    SESSION = auto()
    """A frame of the session: HELLO or ERROR."""
    NOTIFY = auto()
    """The NOTIFY of a stream."""
    MESSAGES = auto()
    """MESSAGEs of one stream."""
    END = auto()
    """The frame that ends a stream."""


class Part(NamedTuple):
    """Whole frames of a connector, one after the other, that are about the same thing."""

    data: bytes
    kind: PartKind = PartKind.SESSION
    stream_id: int = 0
    """The stream that they are about; 0 for those of the session."""


def revision_of(headers: Iterable[tuple[str, bytes]]) -> Revision | None:
    """The revision that headers name; None where the other side is no connector of this protocol."""
    return next((REVISIONS.get(value.decode("ascii", "replace")) for key, value in headers if key == HEADER), None)


def answer_to(headers: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The headers with which a worker answers those of a client."""
    revision = revision_of(headers)
    return [] if revision is None else [(HEADER, revision.name.encode())]


def split(revision: Revision, data: bytes, most: int = MESSAGE_BYTES) -> Iterator[bytes]:
    """Split whole frames into messages of at most ``most`` bytes; a longer frame is one by itself."""
    if len(data) <= most:
        yield data
        return
    begin = at = 0
    while at < len(data):
        end = _end(revision, data, at)
        if end - begin > most and at > begin:
            yield data[begin:at]
            begin = at
        at = end
    yield data[begin:]


def is_ephemeral(revision: Revision, data: bytes) -> bool:
    """Whether the first of these MESSAGEs is EPHEMERAL."""
    if revision.layout.known_flags is None:
        return False
    flags = frames.structs(revision.byte_order).u16.unpack_from(data, HEADER_BYTES)[0]
    return bool(flags & frames.Flags.EPHEMERAL)


class ChannelRules:
    """What a worker checks of each message before its bytes go to the session. Raises :class:`RemoteProtocolError`."""

    def __init__(self, revision: Revision) -> None:
        self._revision = revision
        self._structs = frames.structs(revision.byte_order)
        self._greeted = False
        flags = 0 if revision.layout.known_flags is None else _FLAGS_BYTES
        self._of_streams = {revision.message_tag: HEADER_BYTES + flags}
        """The tags of frames that travel on the channels of their streams, with the offset of the stream's id."""
        if (end := revision.by_frame.get(frames.EosMessage)) is not None:
            self._of_streams[end.tag] = HEADER_BYTES
        self._notify = revision.by_frame[frames.Notify].tag

    def session_frame(self, data: bytes, senders: int, receivers: int) -> int | None:
        """Check a message of the entrypoint, with so many attached senders and receivers.

        Returns the id of the stream whose channel it attaches; None for a frame of the session.
        """
        if len(data) < HEADER_BYTES or _end(self._revision, data, 0) != len(data):
            raise broken(Fault.TRUNCATED_FRAME, f"a message of {len(data)} bytes on the entrypoint is not one frame")
        tag = data[LENGTH_BYTES]
        if tag in self._of_streams:
            raise broken(
                Fault.WRONG_CHANNEL, "a stream's frame came on the entrypoint; send it on the stream's channel"
            )
        first, self._greeted = not self._greeted, True
        wanted = (1, 0) if first else (0, 1) if tag == self._notify else (0, 0)
        if (senders, receivers) != wanted:
            raise broken(
                Fault.WRONG_CHANNEL,
                f"a frame on the entrypoint attaches {senders} senders and {receivers} receivers, and this one takes "
                f"{wanted[0]} and {wanted[1]}: HELLO attaches the worker's channel, NOTIFY that of its stream",
            )
        if tag != self._notify or len(data) < HEADER_BYTES + _STREAM_BYTES:
            return None
        return int(self._structs.u64.unpack_from(data, HEADER_BYTES)[0])

    def stream_frames(self, stream_id: int, data: bytes, *, unreliable: bool = False) -> None:
        """Check a message of a stream's channel; ``unreliable``: it came in a datagram."""
        wanted, at, count = self._structs.u64.pack(stream_id), 0, 0
        length_of, offsets = self._structs.u32.unpack_from, self._of_streams
        last = len(data) - HEADER_BYTES - _STREAM_BYTES
        while at <= last:
            offset = offsets.get(data[at + LENGTH_BYTES])
            if offset is None:
                why = f"the channel of stream {stream_id} has a frame that is no MESSAGE; send it on the entrypoint"
                raise broken(Fault.WRONG_CHANNEL, why)
            if data[at + offset : at + offset + _STREAM_BYTES] != wanted:
                raise broken(Fault.WRONG_CHANNEL, f"the channel of stream {stream_id} has a MESSAGE of another stream")
            at += LENGTH_BYTES + length_of(data, at)[0]
            count += 1
        if at != len(data) or not count:
            why = f"a message of the channel of stream {stream_id} does not consist of whole frames"
            raise broken(Fault.TRUNCATED_FRAME, why)
        if unreliable and (count > 1 or not is_ephemeral(self._revision, data)):
            why = f"a datagram of stream {stream_id} is not one EPHEMERAL MESSAGE; send all others reliably"
            raise broken(Fault.WRONG_CHANNEL, why)


def _end(revision: Revision, data: bytes, at: int) -> int:
    length: int = frames.structs(revision.byte_order).u32.unpack_from(data, at)[0]
    return at + LENGTH_BYTES + length
