"""What a machine wants to be done, in order, and the ids of the streams that it opens."""

from __future__ import annotations

from wallaroo_spark.aqueduct.frames import Frame, Side, Version, encode
from wallaroo_spark.aqueduct.machine.instructions import Instruction, ResetStream, SendDatagram, SendStream

VERSION = b"0.0.0-AFTER"
"""The version of the protocol, compared exactly."""
VERSION_FRAME = encode(Version(VERSION))
BIDIRECTIONAL, UNIDIRECTIONAL = 0, 2
"""The second lowest bit of a stream's id."""


class Outgoing:
    """Instructions in order. Streams are opened in the order of their ids, each with its first frame.

    ``version_first`` puts a Version frame in front of each stream and datagram, which a client does until it has the
    server's headers.
    """

    def __init__(self, side: Side) -> None:
        self.version_first = side is Side.CLIENT
        self._instructions: list[Instruction] = []
        self._side = side
        self._opened = {BIDIRECTIONAL: 0, UNIDIRECTIONAL: 0}
        self.open: set[int] = set()
        """The bidirectional streams on which this side can send."""

    def open_stream(self, kind: int, *frames: Frame, end: bool = False) -> int:
        """Open a stream of a kind with its first frames, and return its id."""
        stream = self._opened[kind] * 4 + kind + self._side
        self._opened[kind] += 1
        data = b"".join(map(encode, frames))
        self._instructions.append(SendStream(stream, VERSION_FRAME + data if self.version_first else data, end))
        if kind == BIDIRECTIONAL:
            self.open.add(stream)
        return stream

    def send(self, stream: int, *frames: Frame, end: bool = False) -> None:
        """Send further frames on a stream."""
        self._instructions.append(SendStream(stream, b"".join(map(encode, frames)), end))
        if end:
            self.open.discard(stream)

    def reset(self, stream: int, code: int) -> None:
        """Reset the direction in which this side sends."""
        self._instructions.append(ResetStream(stream, code))
        self.open.discard(stream)

    def datagram(self, frame: Frame) -> None:
        """Send a datagram of one frame."""
        self._instructions.append(SendDatagram(self.in_datagram(frame)))

    def in_datagram(self, frame: Frame) -> bytes:
        """The datagram of one frame."""
        return VERSION_FRAME + encode(frame) if self.version_first else encode(frame)

    def add(self, instruction: Instruction) -> None:
        """Add an instruction or notice as it is."""
        self._instructions.append(instruction)

    def take(self) -> list[Instruction]:
        """All instructions since the last call."""
        taken, self._instructions = self._instructions, []
        return taken
