"""One session over one connection: frames out in batches, frames in one by one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from wallaroo_spark.errors import RemoteProtocolError, TransportError, one_line
from wallaroo_spark.protocol import ConnectorSession, EncodedRun, EosMessage, Fault, Frame, Message, Notify
from wallaroo_spark.transport import ByteStream

_log = one_line(logging.getLogger("wallaroo_spark.connector"))

BATCH_BYTES = 64 * 1024
"""Frames collected before a sender has to wait for the connection to take them."""

FLUSH_SECONDS = 5.0
"""Longest that closing waits for collected frames to go out."""


class Link:
    """A :class:`ConnectorSession` and the bytes it is carried over.

    Frames are collected and written once per turn of the event loop, so that small messages cost no system call each.
    ``on_room`` is called after every such write.
    """

    def __init__(self, stream: ByteStream, session: ConnectorSession, on_room: Callable[[], None]) -> None:
        self.session = session
        self.peer = stream.peer
        self.progressed = False
        self._stream = stream
        self._on_room = on_room
        self._frames: list[bytes] = []
        self._pending = 0
        self._written = asyncio.Event()
        self._written.set()
        self._dirty = asyncio.Event()
        self._debug = _log.isEnabledFor(logging.DEBUG)
        self._writer = asyncio.get_running_loop().create_task(self._write())

    @property
    def full(self) -> bool:
        """Whether the connection has to take something first."""
        return self._pending >= BATCH_BYTES

    @property
    def room(self) -> int:
        """Bytes it may be given before that."""
        return BATCH_BYTES - self._pending

    @property
    def idle(self) -> bool:
        """Whether every frame was handed to the connection."""
        return self._pending == 0

    def hello(self, version: str, cookie: str, program: str, instance: str) -> None:
        """Send HELLO."""
        data = self.session.hello(version=version, cookie=cookie.encode(), program=program, instance=instance)
        self._say("HELLO %s as %r, version %r", program, instance, version)
        self._send(data)

    def notify(self, stream_id: int, name: str, ref: int) -> None:
        """Send NOTIFY."""
        data = self.session.notify(stream_id, name, ref)
        self._say("%r", Notify(stream_id, name, ref))
        self._send(data)

    def message(self, message: Message) -> None:
        """Send MESSAGE. Raises :class:`LocalProtocolError`, and then nothing was sent."""
        data = self.session.message(message)
        self._say("%r", message)
        self._send(data)

    def messages(self, run: EncodedRun) -> None:
        """Send many MESSAGEs. Raises :class:`LocalProtocolError`, and then none was sent."""
        data = self.session.messages(run)
        if self._debug:
            self._say("%r", run if run.count > 1 else run.revision.decode(data[4], data[5:]))
        self._send(data)

    def end(self, stream_id: int, last_id: int) -> None:
        """Send what closes a stream."""
        data = self.session.end_of_stream(stream_id, last_id)
        self._say("%r", EosMessage(stream_id, last_id))
        self._send(data)

    async def next(self) -> Frame:
        """The worker's next frame.

        Raises :class:`TransportError` at the end of the connection, however it ends, and
        :class:`RemoteProtocolError` when the worker breaks the protocol; it has been told so then.
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
        """Send what is collected, then an ERROR with ``reason`` if there is one, and close in an orderly way."""
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
        # A reset by the peer that comes in the middle of the close must not end more than this session.
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
        raise TransportError(f"the worker at {self.peer} closed the connection", address=self.peer, reason="closed")

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
                data, self._frames = b"".join(self._frames), []
                self._stream.write(data)
                await self._stream.drain()
                self._pending -= len(data)
                if not self._frames:
                    self._written.set()
                self._on_room()
        except TransportError:
            # The reader meets the same end and says why.
            self._written.set()

    def _say(self, text: str, *values: object, sign: str = ">") -> None:
        if self._debug:
            _log.debug(f"{sign} {self.peer} {text}", *values)
