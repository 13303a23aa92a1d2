"""Finding frames in a byte stream, and runs of MESSAGE frames without looking into them.

Source: ``docs/protocol.md#framing``; ``docs/decisions/runs.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from wallaroo_spark.protocol.faults import Fault, broken
from wallaroo_spark.protocol.frames import Message
from wallaroo_spark.protocol.revisions import Revision
from wallaroo_spark.protocol.wire import structs

LENGTH_BYTES = 4
HEADER_BYTES = 5


@dataclass(frozen=True, slots=True)
class RawFrame:
    """A frame's tag and body, not decoded."""

    tag: int
    body: bytes


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Consecutive MESSAGE frames in one buffer, not decoded."""

    revision: Revision
    data: bytes
    """The buffer; other frames may lie before and behind the run."""
    starts: Sequence[int]
    """The offset in ``data`` of each body, behind its tag; a body ends 5 bytes before the next one starts."""
    end: int
    """The offset in ``data`` at which the last body ends."""

    @property
    def count(self) -> int:
        """How many messages there are."""
        return len(self.starts)

    @property
    def size(self) -> int:
        """Bytes on the wire, headers included."""
        return self.end - self.starts[0] + HEADER_BYTES if self.count else 0

    def end_of(self, index: int) -> int:
        """Where the body of a message ends in ``data``."""
        return self.starts[index + 1] - HEADER_BYTES if index + 1 < self.count else self.end

    def head(self, count: int) -> MessageRun:
        """The first ``count`` messages of the run."""
        if count >= self.count:
            return self
        end = self.starts[count] - HEADER_BYTES
        return MessageRun(self.revision, self.data, self.starts[:count], end)

    def bodies(self) -> Iterator[memoryview]:
        """Each message's body, for code that is not on the hot path."""
        view = memoryview(self.data)
        for index in range(self.count):
            yield view[self.starts[index] : self.end_of(index)]

    def messages(self) -> Iterator[Message]:
        """Each message decoded by the revision's table, for code that is not on the hot path."""
        tag = self.revision.by_frame[Message].tag
        for body in self.bodies():
            frame = self.revision.decode(tag, body)
            assert isinstance(frame, Message)
            yield frame


class FrameRules(NamedTuple):
    """What is known of the header of a MESSAGE frame; ``byte_order`` is as in ``struct``."""

    byte_order: str
    tag: int
    max_frame_bytes: int


class Finder(Protocol):
    """Finds frames as :func:`walk` does; the positions may be an array."""

    def __call__(self, data: bytes, at: int, rules: FrameRules, /) -> tuple[Any, int]:
        """Where the bodies of the whole MESSAGE frames from ``at`` on begin, and where the last of them ends."""


def walk(data: bytes, at: int, rules: FrameRules, most: int | None = None) -> tuple[list[int], int]:
    """Where the bodies of the whole MESSAGE frames from ``at`` on begin, and where the last of them ends.

    It goes from frame to frame, and ends behind ``most`` of them.
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
    """Bytes as they arrive, and the frames found in them.

    It holds at most one incomplete frame, and sets nothing aside for a length that a peer merely announces. ``find``
    is a faster :func:`walk`.
    """

    def __init__(self, max_frame_bytes: int, find: Finder | None = None) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._find = find or walk
        self._pieces: list[bytes] = []
        self._length = 0
        self._wanted = 0
        self._data = b""
        self._at = 0

    def __len__(self) -> int:
        """Bytes held that belong to no frame handed out yet."""
        return self._length + len(self._data) - self._at

    @property
    def missing(self) -> int:
        """Bytes still missing of the unfinished frame, as far as its header tells; 0 when there is none."""
        held = len(self)
        return max(0, self._wanted - held) if held else 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._pieces.append(data)
        self._length += len(data)

    def peek(self, count: int) -> bytes:
        """Up to ``count`` of the next bytes, not consumed."""
        if len(self._data) - self._at < count:
            self._join()
        return self._data[self._at : self._at + count]

    def clear(self) -> None:
        """Forget everything held."""
        self._pieces, self._length, self._wanted, self._data, self._at = [], 0, 0, b"", 0

    def _join(self) -> None:
        if self._pieces:
            self._data = b"".join((self._data[self._at :], *self._pieces))
            self._at = 0
            self._pieces, self._length = [], 0

    def next(self, revision: Revision, message_tag: int) -> RawFrame | MessageRun | None:
        """The next frame, or all MESSAGE frames up to the next frame of another kind; None when more is needed.

        Raises :class:`RemoteProtocolError` for a length of 0 or above the limit, as soon as the length is there. When
        good frames precede the bad one they are handed out first.
        """
        if len(self) < self._wanted:
            return None
        self._join()
        data = self._data
        starts, at = self._find(data, self._at, FrameRules(revision.byte_order, message_tag, self._max_frame_bytes))
        self._wanted, frame = self._what_follows(revision, at, found_some=len(starts) > 0)
        if frame is not None:
            self._at = at + HEADER_BYTES + len(frame.body)
            return frame
        self._at = at
        if self._wanted:
            # What is left is part of one frame; holding on to all of data for it would cost an idle session megabytes.
            self._data, self._at = data[at:], 0
        return MessageRun(revision, data, starts, at) if len(starts) else None

    def _what_follows(self, revision: Revision, at: int, *, found_some: bool) -> tuple[int, RawFrame | None]:
        """What follows the MESSAGE frames: the number of bytes needed to tell, or a whole frame of another kind.

        The number is 0 when no more bytes are needed. When messages were found, they are handed out first.
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
