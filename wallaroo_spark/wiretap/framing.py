"""Finds frames in a direction of a recorded connection, in spite of faults, and masks the cookie in HELLO.

Source: ``docs/protocol.md#framing``; ``docs/debug-a-connector.md#the-file``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wallaroo_spark.errors import ProtocolError
from wallaroo_spark.protocol import LENGTH_BYTES, Fault, Revision, recognise
from wallaroo_spark.protocol.frames import structs

HEADER_BYTES = LENGTH_BYTES + 1
"""Bytes of the length and the tag."""
LONGEST_HELLO = 262_153
"""Bytes of the longest HELLO, with length and tag: four fields of 65,535 bytes, each with its length."""
MASK = b"*"
"""Takes the place of each byte of a cookie, so that all offsets stay as they were on the wire."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes of a direction: one frame, or bytes in which no frame can be found."""

    offset: int
    """Bytes of the direction in front of it."""
    data: bytes
    """The bytes; of a frame with length and tag."""
    problem: str = ""
    """The reason why they are not a frame; empty for a frame."""
    code: str = ""
    """The code of the problem; empty where it has none."""


class FrameFinder:
    """Divides a direction's bytes into frames. ``skip`` bytes at the beginning belong to a frame of an earlier file.

    A frame that is longer than ``max_frame_bytes`` ends the framing: behind it no frame can be found.
    """

    def __init__(self, revision: Revision, max_frame_bytes: int, *, skip: int = 0) -> None:
        self._u32 = structs(revision.byte_order).u32
        self._max = max_frame_bytes
        self._buffer = bytearray()
        self._offset = 0
        self._skip = skip
        self._lost = False

    def feed(self, data: bytes) -> Iterator[Piece]:
        """The pieces that are complete with these bytes."""
        if self._skip:
            skipped, data = data[: self._skip], data[self._skip :]
            self._skip -= len(skipped)
            yield self._piece(skipped, "the rest of a frame that begins in an earlier file")
        self._buffer += data
        while self._buffer and (found := self._next()) is not None:
            yield found

    def finish(self) -> Iterator[Piece]:
        """The direction has ended."""
        if self._buffer:
            rest = self._take(len(self._buffer))
            missing = (
                f"of {LENGTH_BYTES + self._u32.unpack_from(rest)[0]}" if len(rest) >= LENGTH_BYTES else "of a length"
            )
            yield self._piece(rest, f"the connection ended within a frame, behind {len(rest)} bytes {missing}")

    def _next(self) -> Piece | None:
        if self._lost:
            return self._piece(self._take(len(self._buffer)), "no frame can be found behind a frame that is too long")
        if len(self._buffer) < LENGTH_BYTES:
            return None
        length: int = self._u32.unpack_from(self._buffer)[0]
        if length == 0:
            problem = "a frame of length 0 is announced; the length counts the tag, so it is at least 1"
            return self._piece(self._take(LENGTH_BYTES), problem, Fault.EMPTY_FRAME)
        if length > self._max:
            self._lost = True
            problem = (
                f"a frame of {length} bytes is announced, and frames of at most {self._max} are read here; check the "
                "byte order of the length"
            )
            return self._piece(self._take(len(self._buffer)), problem, Fault.FRAME_TOO_LONG)
        if len(self._buffer) < LENGTH_BYTES + length:
            return None
        return self._piece(self._take(LENGTH_BYTES + length), "")

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _piece(self, data: bytes, problem: str, code: str = "") -> Piece:
        offset, self._offset = self._offset, self._offset + len(data)
        return Piece(offset, data, problem, code)


class FrameCursor:
    """Counts the bytes up to the next frame of a direction, without keeping them."""

    def __init__(self, revision: Revision) -> None:
        self._u32 = structs(revision.byte_order).u32
        self._header = b""
        self._left = 0

    def feed(self, data: bytes) -> None:
        """These bytes follow."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(LENGTH_BYTES - len(self._header), len(data) - at)
                self._header += data[at : at + step]
                if len(self._header) == LENGTH_BYTES:
                    self._left, self._header = self._u32.unpack(self._header)[0], b""
            at += step

    @property
    def place(self) -> tuple[int, bytes]:
        """The number of bytes that the frame still needs, and the bytes of an incomplete length; one is empty."""
        return self._left, self._header


class HelloMask:
    """Replaces the cookie in the first frame of a connector by :data:`MASK`, byte by byte.

    It keeps bytes back until it knows where the cookie ends. In a HELLO whose fields do not fit its length, all bytes
    behind the last field in front of the cookie are masked. With ``keep`` nothing is masked.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self.revision: Revision | None = None
        """The revision of the connection; None until HELLO was recognised, and where it is none."""
        self.done = False
        """Whether all bytes pass unchanged from now on."""
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that may be recorded now."""
        if self.done:
            return data
        self._held += data
        try:
            self.revision = self.revision or recognise(self._held)
        except ProtocolError:
            return self._release(len(self._held), len(self._held))
        if self.revision is None:
            return b""
        begin, end = _cookie(self._held, self.revision)
        return self._release(begin, end) if end <= len(self._held) else b""

    def finish(self) -> bytes:
        """The connector has ended; return the bytes that were kept back."""
        if self.done or self.revision is None:
            return self._release(len(self._held), len(self._held))
        begin, end = _cookie(self._held, self.revision)
        return self._release(min(begin, len(self._held)), min(end, len(self._held)))

    def _release(self, begin: int, end: int) -> bytes:
        held, self._held, self.done = self._held, b"", True
        return held if self._keep else held[:begin] + MASK * (end - begin) + held[end:]


def _cookie(held: bytes, revision: Revision) -> tuple[int, int]:
    """Where the cookie begins and ends in a HELLO of which these are the first bytes.

    Where they do not tell, or the fields do not fit, it is all that may be the cookie, up to the end of the frame.
    """
    formats = structs(revision.byte_order)
    frame_end = min(LENGTH_BYTES + formats.u32.unpack_from(held)[0], LONGEST_HELLO)
    begin = end = HEADER_BYTES
    for _ in ("version", "cookie"):
        begin = end + formats.u16.size
        if begin > min(len(held), frame_end):
            return end, frame_end
        end = begin + formats.u16.unpack_from(held, end)[0]
        if end > frame_end:
            return begin, frame_end
    return begin, end
