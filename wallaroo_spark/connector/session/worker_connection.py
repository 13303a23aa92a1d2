"""A connection to a worker with the session on it: frames are written together and read one by one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from wallaroo_spark.errors import RemoteProtocolError, TransportError, one_line
from wallaroo_spark.protocol import ConnectorSession, EncodedRun, EosMessage, Fault, Frame, Notify
from wallaroo_spark.transport import ByteStream

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

COLLECTED_BYTES = 64 * 1024
"""Bytes of frames that are collected for the next write; a sender waits while there are more.

Measured with messages of 100 bytes in bulk (draft-be), processor time a message: 8 KiB 2.0 µs, 32 KiB 1.0, 64 KiB 0.8,
256 KiB 0.6. More bytes would be faster in bulk, but other streams would wait longer for their turn.
"""

FLUSH_SECONDS = 5.0
"""Limit in seconds of the wait in :meth:`close` until collected frames are written. A choice."""


class WorkerConnection:
    """A :class:`ConnectorSession` and the byte stream that carries it.

    Frames are collected and written once per turn of the event loop, so that small messages cost no system call each.
    ``on_written`` is called after every such write.
    """

    def __init__(self, stream: ByteStream, session: ConnectorSession, on_written: Callable[[], None]) -> None:
        self._session = session
        self._unrecorded: tuple[Callable[[], EncodedRun | None], Callable[[EncodedRun], None]] | None = None
        self.peer = stream.peer
        """The worker's address as ``host:port``."""
        self.progressed = False
        """Whether the worker has acknowledged anything in this session; set by the user of the connection."""
        self._stream = stream
        self._on_written = on_written
        self._frames: list[bytes] = []
        self._pending = 0
        self._written = asyncio.Event()
        self._written.set()
        self._dirty = asyncio.Event()
        self._debug = _log.isEnabledFor(logging.DEBUG)
        self._writer = asyncio.get_running_loop().create_task(self._write())

    @property
    def session(self) -> ConnectorSession:
        """The session; it has recorded every message that was sent."""
        self.record()
        return self._session

    @property
    def full(self) -> bool:
        """Whether a sender must wait until collected frames are written."""
        self.record()
        return self._pending >= COLLECTED_BYTES

    @property
    def room(self) -> int:
        """Bytes of frames that may be sent before the connection is full."""
        self.record()
        return COLLECTED_BYTES - self._pending

    @property
    def idle(self) -> bool:
        """Whether every frame was passed to the byte stream."""
        self.record()
        return self._pending == 0

    def send_hello(self, version: str, cookie: str, program: str, instance: str) -> None:
        """Send HELLO."""
        data = self.session.hello(version=version, cookie=cookie.encode(), program=program, instance=instance)
        self._say("HELLO %s as %r, version %r", program, instance, version)
        self._send(data)

    def send_notify(self, stream_id: int, name: str, ref: int) -> None:
        """Send NOTIFY."""
        data = self.session.notify(stream_id, name, ref)
        self._say("%r", Notify(stream_id, name, ref))
        self._send(data)

    def send_messages(self, run: EncodedRun) -> None:
        """Send a run of MESSAGEs. If it raises :class:`LocalProtocolError`, none of them was sent."""
        data = self.session.messages(run)
        if self._debug:
            self._say("%r", run if run.count > 1 else run.revision.decode(data[4], data[5:]))
        self._send(data)

    def collect(self, close: Callable[[], EncodedRun | None], recorded: Callable[[EncodedRun], None]) -> None:
        """Send the messages of an open run behind the frames that were just sent, at the next write or :meth:`record`.

        ``close`` ends the run and returns its messages, ``recorded`` is told that they were sent.
        """
        assert self._frames, "an open run follows frames that wait for a write"
        self._unrecorded = close, recorded

    def record(self) -> None:
        """Close the open run, if there is one, and send its messages."""
        if self._unrecorded is None:
            return
        (close, recorded), self._unrecorded = self._unrecorded, None
        run = close()
        if run is not None:
            self.send_messages(run)
            recorded(run)

    def send_end(self, stream_id: int, last_id: int, *, ephemeral: bool) -> None:
        """Close a stream as the revision does: by a frame, or by a MESSAGE with the EOS flag."""
        data = self.session.end_of_stream(stream_id, last_id, ephemeral=ephemeral)
        self._say("%r", EosMessage(stream_id, last_id))
        self._send(data)

    async def next(self) -> Frame:
        """The worker's next frame.

        Raises :class:`TransportError` when the connection has ended for any reason, and :class:`RemoteProtocolError`
        when the worker violates the protocol; then an ERROR was sent to it.
        """
        while True:
            frame = self._next_frame()
            if frame is not None:
                self._say("%r", frame, sign="<")
                return frame
            data = await self._stream.read()
            if not data:
                self._ended()
            self.session.receive(data)

    async def close(self, reason: str = "") -> None:
        """Send the collected frames, then an ERROR if there is a ``reason``, and close the connection in order."""
        if reason:
            data = self.session.error(reason)
            if data is not None:
                self._say("ERROR %s", reason)
                self._send(data)
        if not self._writer.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._written.wait()
        self._writer.cancel()
        await asyncio.wait([self._writer])
        # A reset by the peer during the close ends only this session.
        with contextlib.suppress(OSError):
            await self._stream.close()

    def _next_frame(self) -> Frame | None:
        try:
            return self.session.next_event()
        except RemoteProtocolError as error:
            data = self.session.fail(error.message)
            if data is not None:
                self._say("ERROR %s", error.message)
                self._send(data)
            raise

    def _ended(self) -> None:
        try:
            self.session.receive_end()
        except RemoteProtocolError as error:
            if error.fields.get("fault") is not Fault.TRUNCATED_FRAME:
                raise
        raise TransportError(
            f"the worker at {self.peer} closed the connection",
            code="connection-lost",
            address=self.peer,
            reason="closed",
        )

    def _send(self, data: bytes) -> None:
        self._frames.append(data)
        self._pending += len(data)
        if len(self._frames) == 1:
            self._dirty.set()
            self._written.clear()

    async def _write(self) -> None:
        try:
            while True:
                await self._dirty.wait()
                self._dirty.clear()
                self.record()
                data, self._frames = b"".join(self._frames), []
                self._stream.write(data)
                await self._stream.drain()
                self._pending -= len(data)
                if not self._frames:
                    self._written.set()
                self._on_written()
        except TransportError:
            # The reader meets the same error and raises it.
            self._written.set()

    def _say(self, text: str, *values: object, sign: str = ">") -> None:
        if self._debug:
            _log.debug(f"{sign} {self.peer} {text}", *values)
