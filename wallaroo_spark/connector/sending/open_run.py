"""The messages that ``send`` has appended and not recorded yet, as one run of frames that is still open.

Recording a message alone costs a run, a check of the session's state and an entry in the resend buffer. While there is
room, each later message only appends its frame to the open run, and all of them are recorded together.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from wallaroo_spark.connector.sending.resend_buffer import ID_BYTES
from wallaroo_spark.protocol import LENGTH_BYTES, EncodedRun, Revision, encode_frame, plain_head


class OpenRun:
    """Frames of one stream, and the limits for further frames.

    It is open from :meth:`open` to :meth:`close`. Code that reads or changes credits, memory or the state of the stream
    must close it first.
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
        """The id of the next message if the caller gives none."""
        self._floor = 0
        """The id of the last message sent."""
        self._longest = 0
        """The most bytes of a frame after its length field."""
        self._room = -1
        """Bytes of frames and counted memory of ids that may still be added; -1 while closed."""
        self._messages = 0
        """Number of messages that may still be added."""

    @property
    def count(self) -> int:
        """The number of messages that are not recorded yet."""
        return len(self._ids)

    @property
    def last(self) -> int:
        """Id of the last message that was added; only while there are messages."""
        return self._following - 1

    def open(self, floor: int, following: int, messages: int, room: int, longest: int) -> None:
        """Accept up to ``messages`` messages behind the one with the id ``floor``.

        All of them together may have ``room`` bytes of frames and counted memory of ids, and each frame ``longest``
        bytes after its length field. A message without an id gets ``following``, and the next one an id above that.
        """
        self._floor = floor
        self._following = following
        self._messages = messages
        self._room = room
        self._longest = longest

    def add(self, payload: bytes, wanted: int | None) -> int | None:
        """Append a message without key, event time and flags of its own; return its id.

        Returns None, and changes nothing, when the message does not fit or is invalid. The caller then sends it as a
        single message, which raises the error if there is one.
        """
        size = self._body + len(payload)
        room = self._room - size - (LENGTH_BYTES + ID_BYTES)
        if room < 0 or size > self._longest or not self._messages:
            return None
        try:
            if wanted is None:
                wanted = self._following
            elif wanted <= self._floor or not self._increasing:
                return None
            head = self._pack(size, self._prefix, wanted, *self._rest)
        except (struct.error, TypeError):
            return None
        self._frames.append(head)
        self._frames.append(payload)
        self._added(wanted, room)
        return wanted

    def add_any(
        self, payload: bytes | None, wanted: int | None, flags: int, event_time: int | None, key: bytes | None
    ) -> int | None:
        """As :meth:`add`, for any message. Raises :class:`LocalProtocolError` for values that a frame cannot carry."""
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
        """Accept no more messages; return the messages that were added, or None when there are none."""
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
    # Ids with gaps come here only if they increase, and then this difference shows the gaps.
    return range(first, last + 1) if last - first + 1 == len(ids) else array("Q", ids)
