"""Finds frames in a byte stream, and runs of MESSAGE frames without decoding them.

Source: ``docs/protocol.md#framing``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.frames import Message, structs
from wallaroo_spark.protocol.revisions import Revision

LENGTH_BYTES = 4
"""Size of the length field in front of each frame, in bytes."""
HEADER_BYTES = 5
"""Size of the length field and the tag, in bytes."""


@dataclass(frozen=True, slots=True)
class RawFrame:
    """A frame that is not decoded."""

    tag: int
    body: bytes
    """The bytes behind the tag."""


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Consecutive MESSAGE frames in one buffer, not decoded."""

    revision: Revision
    """Revision of the frames."""
    data: bytes
    """The buffer; other frames may be in front of and behind the run."""
    starts: Sequence[int]
    """Offset in ``data`` of each body, behind its tag. A body ends 5 bytes before the next one starts."""
    end: int
    """Offset in ``data`` of the end of the last body."""

    @property
    def count(self) -> int:
        """Number of messages."""
        return len(self.starts)

    @property
    def size(self) -> int:
        """Bytes on the wire, with headers."""
        return self.end - self.starts[0] + HEADER_BYTES if self.count else 0

    def end_of(self, index: int) -> int:
        """Offset in ``data`` of the end of body ``index``."""
        return self.starts[index + 1] - HEADER_BYTES if index + 1 < self.count else self.end

    def head(self, count: int) -> MessageRun:
        """The run of the first ``count`` messages."""
        if count >= self.count:
            return self
        end = self.starts[count] - HEADER_BYTES
        return MessageRun(self.revision, self.data, self.starts[:count], end)

    def bodies(self) -> Iterator[memoryview]:
        """Iterate over the bodies; not for the hot path."""
        view = memoryview(self.data)
        for index in range(self.count):
            yield view[self.starts[index] : self.end_of(index)]

    def messages(self) -> Iterator[Message]:
        """Iterate over the decoded messages; not for the hot path."""
        for body in self.bodies():
            frame = self.revision.decode(self.revision.message_tag, body)
            assert isinstance(frame, Message)
            yield frame


class FrameRules(NamedTuple):
    """Properties of the headers of valid MESSAGE frames."""

    byte_order: str
    """``"<"`` or ``">"``, as in ``struct``."""
    tag: int
    """Tag of MESSAGE."""
    max_frame_bytes: int
    """Greatest valid length."""


Finder = Callable[[bytes, int, FrameRules], tuple[Any, int]]
"""A function that finds frames as :func:`walk` does; the positions may be an array."""


def walk(data: bytes, at: int, rules: FrameRules, most: int | None = None) -> tuple[list[int], int]:
    """Return the starts of the bodies of the complete MESSAGE frames from offset ``at`` on, and the last body's end.

    It steps from frame to frame and stops after ``most`` frames.
    """
    unpack = structs(rules.byte_order).u32_u8.unpack_from
    _, tag, longest = rules
    size = len(data)
    last, count = size - HEADER_BYTES, size if most is None else most
    starts: list[int] = []
    while at <= last and len(starts) < count:
        length, kind = unpack(data, at)
        end = at + LENGTH_BYTES + length
        if kind != tag or end > size or not 0 < length <= longest:
            break
        starts.append(at + HEADER_BYTES)
        at = end
    return starts, at


class FrameBuffer:
    """Buffers received bytes and returns the frames in them.

    It holds at most one incomplete frame and reserves no memory for an announced length. ``find`` is a faster
    :func:`walk`.
    """

    def __init__(self, max_frame_bytes: int, find: Finder | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._find = find or walk
        self.clear()

    def __len__(self) -> int:
        """Buffered bytes that are not part of a returned frame."""
        return self._length + len(self._data) - self._at

    @property
    def missing(self) -> int:
        """Bytes that the incomplete frame still needs, as far as its header tells; 0 without one."""
        held = len(self)
        return max(0, self._wanted - held) if held else 0

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._pieces.append(data)
        self._length += len(data)

    def peek(self, count: int) -> bytes:
        """Return up to ``count`` of the next bytes without consuming them."""
        if len(self._data) - self._at < count:
            self._join()
        return self._data[self._at : self._at + count]

    def clear(self) -> None:
        """Discard all buffered bytes."""
        self._pieces: list[bytes] = []
        self._data = b""
        self._length = self._wanted = self._at = 0

    def _join(self) -> None:
        if self._pieces:
            self._data = b"".join((self._data[self._at :], *self._pieces))
            self._at = 0
            self._pieces, self._length = [], 0

    def next(self, revision: Revision, message_tag: int) -> RawFrame | MessageRun | None:
        """Return the next frame, or all MESSAGE frames up to the next other frame; None when more bytes are needed.

        Raises :class:`RemoteProtocolError` for a length of 0 or above the limit as soon as the length field is
        complete. Valid frames in front of the invalid one are returned first.
        """
        if len(self) < self._wanted:
            return None
        self._join()
        data = self._data
        starts, at = self._find(data, self._at, FrameRules(revision.byte_order, message_tag, self._max_frame_bytes))
        self._wanted, frame = self._frame_behind_messages(revision, at, found_some=len(starts) > 0)
        if frame is not None:
            self._at = at + HEADER_BYTES + len(frame.body)
            return frame
        self._at = at
        if self._wanted:
            # The rest is part of one frame. A copy releases ``data``, which would cost an idle session megabytes.
            self._data, self._at = data[at:], 0
        return MessageRun(revision, data, starts, at) if len(starts) else None

    def _frame_behind_messages(self, revision: Revision, at: int, *, found_some: bool) -> tuple[int, RawFrame | None]:
        """Return the number of bytes needed to continue at ``at``, and the frame there if it is complete.

        ``at`` is the offset behind the MESSAGE frames. The number is 0 when no more bytes are needed. When messages
        were found, they are returned first and the frame is None.
        """
        data, left = self._data, len(self._data) - at
        if left < LENGTH_BYTES or (left < HEADER_BYTES and found_some):
            return LENGTH_BYTES, None
        length: int = structs(revision.byte_order).u32.unpack_from(data, at)[0]
        if not 0 < length <= self._max_frame_bytes:
            if not found_some:
                self._check_length(length)
            return 0, None
        if left < LENGTH_BYTES + length:
            return max(HEADER_BYTES, LENGTH_BYTES + length), None
        if found_some:
            return 0, None
        end = at + LENGTH_BYTES + length
        return 0, RawFrame(data[at + LENGTH_BYTES], data[at + HEADER_BYTES : end])

    def _check_length(self, length: int) -> None:
        if length > self._max_frame_bytes:
            raise broken(
                Fault.FRAME_TOO_LONG,
                f"a frame of {length} bytes is announced; at most {self._max_frame_bytes} are accepted (maxFrameBytes)",
            )
        if length == 0:
            raise broken(Fault.EMPTY_FRAME, "a frame of length 0 is announced; a frame has at least its tag")
