"""The messages that ``send`` has appended and that are not recorded yet: one run of frames in the making.

A single message that is recorded by itself pays for a run, a look at the session and an entry of the resend buffer.
While there is room, the messages behind it only add their frame here, and all of them are recorded together.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from wallaroo_spark.connector.sending.resend_buffer import ID_BYTES
from wallaroo_spark.protocol import LENGTH_BYTES, EncodedRun, Revision, encode_frame, plain_head


class OpenRun:
    """Frames of one stream, and how many more may follow them.

    It is open from :meth:`open` to :meth:`close`. Code that asks for credits, memory or the state of the stream, or
    changes one of them, closes it first.
    """

    __slots__ = (
        "_body",
        "_flags",
        "_floor",
        "_following",
        "_frames",
        "_ids",
        "_increasing",
        "_longest",
        "_messages",
        "_pack",
        "_prefix",
        "_rest",
        "_revision",
        "_room",
        "_stream_id",
    )

    def __init__(self, revision: Revision, stream_id: int, flags: int, *, increasing: bool) -> None:
        self._revision = revision
        self._stream_id = stream_id
        self._flags = flags
        """The flags of every message of the stream."""
        self._increasing = increasing
        """Whether message ids increase within the stream."""
        self._pack, self._prefix, self._body, self._rest = plain_head(revision, stream_id, flags)
        self._frames: list[bytes] = []
        """The parts of the frames, in order."""
        self._ids: list[int] = []
        self._following = 0
        """The id of a message that is given none."""
        self._floor = 0
        """The id of the last message sent."""
        self._longest = 0
        """The most bytes that a frame may have behind its length."""
        self._room = -1
        """Bytes that may still be added, of frames and of what is counted for keeping an id; -1 while closed."""
        self._messages = 0
        """Messages that may still be added."""

    @property
    def count(self) -> int:
        """The messages that are not recorded yet."""
        return len(self._ids)

    @property
    def last(self) -> int:
        """The id that the next message follows, while there are messages."""
        return self._following - 1

    def open(self, floor: int, following: int, messages: int, room: int, longest: int) -> None:
        """Let up to ``messages`` follow one with the id ``floor``, with ``room`` bytes of frames and memory in all.

        A message that is given no id gets ``following``. A frame has at most ``longest`` bytes behind its length.
        """
        self._floor = floor
        self._following = following
        self._messages = messages
        self._room = room
        self._longest = longest

    def add(self, payload: bytes, wanted: int | None) -> int | None:
        """Append a message that has neither key nor event time nor a flag of its own; its id.

        None where it does not fit or has something wrong with it: then nothing has changed, and it is sent as a message
        by itself.
        """
        size = self._body + len(payload)
        room = self._room - size - (LENGTH_BYTES + ID_BYTES)
        if room < 0 or size > self._longest or not self._messages:
            return None
        if wanted is None:
            wanted = self._following
        elif wanted <= self._floor or not self._increasing:
            return None
        try:
            head = self._pack(size, self._prefix, wanted, *self._rest)
        except struct.error:
            return None
        self._frames.append(head)
        self._frames.append(payload)
        self._added(wanted, room)
        return wanted

    def add_any(
        self, payload: bytes | None, wanted: int | None, flags: int, event_time: int | None, key: bytes | None
    ) -> int | None:
        """As :meth:`add`, for any message. Raises :class:`LocalProtocolError` for what a frame cannot carry."""
        if self._room < 0 or not self._messages:
            return None
        if wanted is None:
            wanted = self._following
        elif wanted <= self._floor or not self._increasing:
            return None
        frame = encode_frame(self._revision, self._stream_id, wanted, payload, flags | self._flags, event_time, key)
        room = self._room - len(frame) - ID_BYTES
        if room < 0 or len(frame) - LENGTH_BYTES > self._longest:
            return None
        self._frames.append(frame)
        self._added(wanted, room)
        return wanted

    def close(self) -> EncodedRun | None:
        """Let nothing more follow; the messages that were added, None when there are none."""
        self._room = -1
        if not self._ids:
            return None
        ids, frames = self._ids, self._frames
        self._ids, self._frames = [], []
        return EncodedRun(self._revision, self._stream_id, _compact(ids), b"".join(frames))

    def _added(self, message_id: int, room: int) -> None:
        self._ids.append(message_id)
        self._floor = message_id
        if message_id >= self._following:
            self._following = message_id + 1
        self._messages -= 1
        self._room = room


def _compact(ids: list[int]) -> Sequence[int]:
    first, last = ids[0], ids[-1]
    # Only increasing ids come here with gaps, and ids without gaps increase.
    return range(first, last + 1) if last - first + 1 == len(ids) else array("Q", ids)
