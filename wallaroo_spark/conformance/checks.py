"""A check as a row of a table, what it finds, and the run of many.

A connection at one of its ends: frames out, and frames in that are judged as they arrive.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from wallaroo_spark.codes import ENTRIES
from wallaroo_spark.errors import printable
from wallaroo_spark.protocol import Error, Frame, Revision
from wallaroo_spark.protocol.sessions.session import DEFAULT_MAX_FRAME_BYTES
from wallaroo_spark.wiretap.decoding import CaptureDecoder, DecodedFrame
from wallaroo_spark.wiretap.proxy import End
from wallaroo_spark.wiretap.recording import Passed

AT_ONCE = 4
"""Checks that run at the same time. A choice: most of a check is waiting, and a program of the user's runs for each."""
SHOWN_BYTES = 64
"""Bytes of a frame that a result has. A choice: two lines."""
_BEFORE = 16
"""Bytes of them in front of the wrong one, where the frame is longer."""
_PAYLOAD_BYTES = 40

P = TypeVar("P")


@dataclass(frozen=True)
class Check(Generic[P]):
    """One row of a table. ``run`` raises :class:`Mismatch` when the peer does not do as the section says."""

    name: str
    does: str
    """What the check does, and what it expects, in a sentence."""
    page: str
    """The section of the page that it rests on."""
    run: Callable[[P], None]
    revisions: tuple[str, ...] = ()
    """The revisions that it is about; none: all."""


class CheckTable(list[Check[P]]):
    """The checks of a kind of peer, in the order of the page."""

    def check(self, name: str, page: str, *revisions: str) -> Callable[[Callable[[P], None]], Callable[[P], None]]:
        """Add the decorated function as a row. Its docstring is what the check does."""

        def add(run: Callable[[P], None]) -> Callable[[P], None]:
            self.append(Check(name, " ".join((run.__doc__ or "").split()), page, run, revisions))
            return run

        return add


class Mismatch(Exception):
    """The peer does not do as the page says: what was expected, what came, and the frame where there is one."""

    def __init__(self, expected: str, came: str, frame: DecodedFrame | None = None, page: str = "") -> None:
        super().__init__(f"expected: {expected}; came: {came}")
        self.expected, self.came, self.frame, self.page = expected, came, frame, page


class NotApplicableError(Exception):
    """The check is not about this peer, for the reason that it says."""


class CheckOutcome(StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class CheckResult:
    """What a check has found."""

    check: str
    does: str
    outcome: CheckOutcome
    page: str
    """The section that says what is right."""
    revision: str = ""
    """The revision in which the check was made, where it is chosen here."""
    expected: str = ""
    came: str = ""
    frame: str = ""
    """The frame with the difference, decoded; empty where there is none."""
    bytes: str = ""
    """The bytes of the frame in hexadecimal, around the wrong one."""
    offset: int | None = None
    """Offset of the wrong byte among the bytes of its direction."""

    def to_json(self) -> dict[str, Any]:
        """The values that are there."""
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def run_check(check: Check[P], peer: P, revision: str = "") -> CheckResult:
    """Make one check."""
    try:
        check.run(peer)
    except NotApplicableError as reason:
        return CheckResult(check.name, check.does, CheckOutcome.LEFT_OUT, check.page, revision, came=str(reason))
    except Mismatch as found:
        page = found.page or check.page
        result = CheckResult(check.name, check.does, CheckOutcome.FAILED, page, revision, found.expected, found.came)
        return result if found.frame is None else _with_frame(result, found.frame)
    return CheckResult(check.name, check.does, CheckOutcome.PASSED, check.page, revision)


class Running:
    """What checks wait for, programs and connections, and how each is ended. Any thread may call its methods."""

    def __init__(self) -> None:
        self._ends: dict[object, Callable[[], None]] = {}
        self._stopped = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def until(self, end: Callable[[], None]) -> Iterator[None]:
        """Within the block, :meth:`stop` calls ``end``; behind it, the block begins with that."""
        key = object()
        with self._lock:
            self._ends[key] = end
            stopped = self._stopped
        try:
            if stopped:
                end()
            yield
        finally:
            with self._lock:
                del self._ends[key]

    def stop(self) -> None:
        """End everything, also what begins later."""
        with self._lock:
            self._stopped = True
            ends = list(self._ends.values())
        for end in ends:
            end()


@dataclass(frozen=True)
class CheckPlan:
    """The checks of a peer that are to be made."""

    checks: Sequence[Callable[[], CheckResult]]
    running: Running
    """What ends the checks that run, when the program is interrupted."""
    at_once: int = AT_ONCE

    def results(self) -> Generator[CheckResult, None, None]:
        """Make the checks; the results come in their order. To be closed, when not all of them are taken."""
        with ThreadPoolExecutor(self.at_once) as pool:
            try:
                yield from pool.map(lambda check: check(), self.checks)
            except BaseException:
                self.running.stop()
                raise


def wrong_frame(frame: DecodedFrame) -> Mismatch:
    """A frame that breaks the protocol by itself, or by the states and credits of its session."""
    page = ENTRIES[frame.code].page if frame.code in ENTRIES else "docs/protocol.md#framing"
    return Mismatch(f"a frame that a {frame.sender} may send here", printable(frame.error), frame, page)


def shown(frame: DecodedFrame) -> str:
    """A frame as a line."""
    return printable(frame.text(_PAYLOAD_BYTES))


def _with_frame(result: CheckResult, frame: DecodedFrame) -> CheckResult:
    at = 0 if frame.error_offset is None else frame.error_offset - frame.offset
    begin = max(0, at - _BEFORE) if len(frame.data) > SHOWN_BYTES else 0
    data = frame.data[begin : begin + SHOWN_BYTES]
    text = f"{'…' if begin else ''}{data.hex(' ')}{'…' if begin + len(data) < len(frame.data) else ''}"
    values = {**vars(result), "frame": shown(frame), "bytes": text, "offset": frame.error_offset}
    return CheckResult(**values)


_CHUNK = 64 * 1024
_APART_SECONDS = 0.001
"""Seconds between two bytes that are to arrive apart. A choice: a reader on the same machine reads in between."""

_SEND_SECONDS = 5.0
"""Longest wait for a peer to take bytes, which are few. A choice."""
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
        self._decoder = CaptureDecoder(max_frame_bytes=DEFAULT_MAX_FRAME_BYTES)
        self._frames: deque[DecodedFrame] = deque()
        self._received = self._whole = 0
        """Bytes of the peer: all, and those of whole frames."""
        self.credits: int | None = None
        """The connector's credits behind all bytes that have passed; None before OK."""
        self.ended = ""
        """How the peer has ended the connection; empty while it has not."""

    def send(self, data: bytes, *, apart: bool = False) -> None:
        """Send bytes: in one piece, or each alone."""
        self._judged(self._own, data)
        # A peer that has gone is noticed when its frames are read.
        self._connection.settimeout(_SEND_SECONDS)
        with contextlib.suppress(OSError):
            for piece in (data[at : at + 1] for at in range(len(data))) if apart else (data,):
                self._connection.sendall(piece)
                if apart:
                    time.sleep(_APART_SECONDS)

    def receive(self, seconds: float) -> DecodedFrame | None:
        """The next frame; None at the end of the connection. Raises :class:`TimeoutError` when nothing comes."""
        until = time.monotonic() + seconds
        if seconds <= 0:
            raise TimeoutError
        while not self._frames and not self.ended:
            data = self._read(until - time.monotonic())
            found = self._judged(self._peer, data)
            self._received += len(data)
            if found:
                self._whole = found[-1].offset + len(found[-1].data)
            self._frames.extend(found)
            if not data:
                # A check may have sent a part of a frame.
                self._frames.extend(one for one in self._decoder.finish() if one.sender is self._peer)
        if not self._frames:
            return None
        frame = self._frames.popleft()
        if frame.error:
            raise wrong_frame(frame)
        return frame

    @property
    def queued(self) -> int:
        """Frames that have come and were not received."""
        return len(self._frames)

    @property
    def begun(self) -> int:
        """Bytes of the peer behind its last whole frame."""
        return self._received - self._whole

    def first(self, seconds: float) -> bytes:
        """The first bytes, without judging; none when nothing comes."""
        with contextlib.suppress(TimeoutError):
            return self._read(seconds)
        return b""

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

    def interrupt(self) -> None:
        """End the connection while another thread reads or writes."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

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

    def next(self, expected: str, seconds: float | None = None, left: float | None = None) -> DecodedFrame:
        """The next frame; ``expected`` is what is waited for, ``left`` what is left of the seconds for it."""
        seconds = self._seconds if seconds is None else seconds
        try:
            frame = self.wire.receive(seconds if left is None else left)
        except TimeoutError:
            begun = f", and {self.wire.begun} bytes of a frame" if self.wire.begun else ""
            raise Mismatch(expected, f"nothing of it within {seconds:g} s{begun}; {self._state()}") from None
        if frame is None:
            raise self._over(expected)
        return frame

    def take(self, until: Callable[[], bool], expected: str) -> None:
        """Take frames until something holds. Frames without progress do not make the wait longer."""
        progress, end = -1, 0.0
        while not until():
            if (reached := self._progress()) > progress:
                progress, end = reached, time.monotonic() + self._seconds
            self._take(self.next(expected, left=end - time.monotonic()), expected)

    def _take(self, frame: DecodedFrame, expected: str = "") -> None:
        raise NotImplementedError

    def _progress(self) -> int:
        """A number that grows as the peer does what is waited for step by step."""
        return 0

    def _over(self, expected: str) -> Mismatch:
        """The peer has ended the connection."""
        return Mismatch(expected, f"the {self._peer} {self.wire.ended}; {self._state()}{self._ending()}")

    def _state(self) -> str:
        raise NotImplementedError

    def _ending(self) -> str:
        """What is to be said of a peer whose connection has ended."""
        return ""
