"""One connection at one of its ends: frames out, and frames in that are judged as they arrive."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

from wallaroo_spark.conformance.checks import Mismatch, wrong_frame
from wallaroo_spark.protocol import Error, Frame, Revision
from wallaroo_spark.wiretap.decoding import CaptureDecoder, DecodedFrame
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import Passed

_CHUNK = 64 * 1024
_APART_SECONDS = 0.001
"""Seconds between two bytes that are to arrive apart. A choice: a reader on the same machine reads in between."""

_CLOSE_SECONDS = 2.0
"""Longest wait for a peer to close, too. A choice."""


class Wire:
    """A connection of which this program is the end ``own``.

    A received frame that breaks a rule raises :class:`~.checks.Mismatch`. Frames that are sent here are not judged,
    because checks send wrong ones, too; they move the states and the credits by which the peer is judged.
    """

    def __init__(self, connection: socket.socket, own: End) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._own, self._peer = own, End.WORKER if own is End.CONNECTOR else End.CONNECTOR
        self._decoder = CaptureDecoder()
        self._frames: deque[DecodedFrame] = deque()
        self.credits: int | None = None
        """The connector's credits behind all bytes that have passed; None before OK."""
        self.ended = ""
        """How the peer has ended the connection; empty while it has not."""

    def send(self, data: bytes, *, apart: bool = False) -> None:
        """Send bytes: in one piece, or each alone."""
        self._judged(self._own, data)
        # A peer that has gone is noticed when its frames are read.
        with contextlib.suppress(OSError):
            for piece in (data[at : at + 1] for at in range(len(data))) if apart else (data,):
                self._connection.sendall(piece)
                if apart:
                    time.sleep(_APART_SECONDS)

    def receive(self, seconds: float) -> DecodedFrame | None:
        """The next frame; None at the end of the connection. Raises :class:`TimeoutError` when nothing comes."""
        until = time.monotonic() + seconds
        while not self._frames and not self.ended:
            data = self._read(until - time.monotonic())
            self._frames.extend(self._judged(self._peer, data))
            if not data:
                self._frames.extend(self._decoder.finish())
        if not self._frames:
            return None
        frame = self._frames.popleft()
        if frame.error:
            raise wrong_frame(frame)
        return frame

    def drain(self, seconds: float) -> bytes:
        """Read without judging until the peer ends the connection; the first bytes. Raises :class:`TimeoutError`."""
        until = time.monotonic() + seconds
        data = b""
        while not self.ended:
            data = (data + self._read(until - time.monotonic()))[:_CHUNK]
        return data

    def close(self, *, reset: bool = False) -> None:
        """End the connection with a reset, or in order: bytes on their way are read, so that what was sent arrives."""
        if reset:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with contextlib.suppress(OSError, TimeoutError):
                self._connection.shutdown(socket.SHUT_WR)
                self.drain(_CLOSE_SECONDS)
        self._connection.close()

    def drop(self) -> None:
        """Nothing more is done with the connection."""
        self._connection.close()

    def _read(self, seconds: float) -> bytes:
        if seconds <= 0:
            raise TimeoutError
        self._connection.settimeout(seconds)
        try:
            data = self._connection.recv(_CHUNK)
            self.ended = "" if data else "closed the connection"
        except TimeoutError:
            raise
        except OSError as error:
            data, self.ended = b"", f"broke the connection off ({error.strerror or error})"
        return data

    def _judged(self, sender: End, data: bytes) -> list[DecodedFrame]:
        frames = list(self._decoder.feed(Passed(time.time(), 1, sender, data)))
        self.credits = next((one.credits for one in reversed(frames) if one.credits is not None), self.credits)
        return frames


def error_of(frame: DecodedFrame) -> str | None:
    """The reason of an ERROR; None for other frames."""
    return frame.frame.reason if isinstance(frame.frame, Error) else None


class CheckedSession:
    """One session with the ``peer``: frames out, and frames in up to what a check waits for, at most ``seconds``."""

    revision: Revision

    def __init__(self, wire: Wire, peer: str, seconds: float) -> None:
        self.wire = wire
        self.apart = False
        """Whether each byte is sent alone."""
        self._peer, self._seconds = peer, seconds

    def send(self, *frames: Frame) -> None:
        """Send frames in one piece."""
        self.wire.send(b"".join(map(self.revision.encode, frames)), apart=self.apart)

    def next(self, expected: str) -> DecodedFrame:
        """The next frame; ``expected`` is what is waited for."""
        try:
            frame = self.wire.receive(self._seconds)
        except TimeoutError:
            raise Mismatch(expected, f"nothing within {self._seconds:g} s; {self._state()}") from None
        if frame is None:
            raise self._over(expected)
        return frame

    def take(self, until: Callable[[], bool], expected: str) -> None:
        """Take frames until something holds."""
        while not until():
            self._take(self.next(expected), expected)

    def _take(self, frame: DecodedFrame, expected: str = "") -> None:
        raise NotImplementedError

    def _over(self, expected: str) -> Mismatch:
        """The peer has ended the connection."""
        return Mismatch(expected, f"the {self._peer} {self.wire.ended}; {self._state()}{self._ending()}")

    def _state(self) -> str:
        raise NotImplementedError

    def _ending(self) -> str:
        """What is to be said of a peer whose connection has ended."""
        return ""
