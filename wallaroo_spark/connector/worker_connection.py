"""A connection to a worker with the session on it, and the order in which a connector tries the workers' addresses.

Frames are written together and read one by one. The order of addresses is pure: clock and random numbers are arguments.
Source: ``docs/protocol.md#when-to-try-again``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from wallaroo_spark.connector.backoff import Backoff
from wallaroo_spark.errors import RemoteProtocolError, TransportError, one_line
from wallaroo_spark.protocol import ConnectorSession, EncodedRun, EosMessage, Fault, Frame, Notify
from wallaroo_spark.protocol.channels import Part, PartKind
from wallaroo_spark.transport import ByteStream

_log = one_line("wallaroo_spark.connector")

COLLECTED_BYTES = 64 * 1024
"""Bytes of frames that are collected for the next write; a sender waits while there are more.

Measured with messages of 100 bytes in bulk (draft-be), processor time a message: 8 KiB 2.0 µs, 32 KiB 1.0, 64 KiB 0.8,
256 KiB 0.6. More bytes would be faster in bulk, but other streams would wait longer for their turn.
"""

FLUSH_SECONDS = 5.0
"""Limit in seconds of the wait in :meth:`close` until collected frames are written. A choice."""


class Carrier(Protocol):
    """What carries the frames of a session to a worker and back."""

    lost: Callable[[int], None]
    """Set by the user, and called with the number of EPHEMERAL messages that were lost, when that is known."""

    @property
    def peer(self) -> str:
        """The worker's address as ``host:port``."""

    async def send(self, parts: Sequence[Part]) -> None:
        """Send frames, in order; wait while the network takes no more. Raises :class:`TransportError`."""

    async def read(self) -> bytes:
        """The next bytes of the worker's frames; ``b""`` once the worker has closed. Raises :class:`TransportError`."""

    async def close(self) -> None:
        """Send what was accepted, within a bounded time, and close. Raises only OSError."""


class TcpCarrier:
    """Carries all frames as one sequence of bytes, over TCP or TLS. It loses nothing."""

    lost: Callable[[int], None]

    def __init__(self, stream: ByteStream) -> None:
        self.peer = stream.peer
        self.read = stream.read
        self.close = stream.close
        self._stream = stream

    async def send(self, parts: Sequence[Part]) -> None:
        """See :class:`Carrier`."""
        self._stream.write(b"".join([part.data for part in parts]))
        await self._stream.drain()


class WorkerConnection:
    """A :class:`ConnectorSession` and what carries its frames.

    Frames are collected and written once per turn of the event loop, so that small messages cost no system call each.
    ``on_written`` is called after every such write, ``on_lost`` with the number of messages that were lost on the way.
    """

    def __init__(
        self,
        carrier: Carrier,
        session: ConnectorSession,
        on_written: Callable[[], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._session = session
        self._unrecorded: tuple[Callable[[], EncodedRun | None], Callable[[EncodedRun], None]] | None = None
        self.peer = carrier.peer
        """The worker's address as ``host:port``."""
        self.progressed = False
        """Whether the worker has acknowledged anything in this session; set by the user of the connection."""
        self._carrier = carrier
        self._on_written = on_written
        carrier.lost = on_lost
        self._frames: list[Part] = []
        self._pending = 0
        self._written = asyncio.Event()
        self._written.set()
        self._dirty = asyncio.Event()
        self._writer = asyncio.get_running_loop().create_task(self._write())

    @property
    def session(self) -> ConnectorSession:
        """The session; it has recorded every message that was sent."""
        self.record()
        return self._session

    @property
    def room(self) -> int:
        """Bytes of frames that may be sent; without room, a sender waits until collected frames are written."""
        self.record()
        return COLLECTED_BYTES - self._pending

    @property
    def idle(self) -> bool:
        """Whether every frame was passed to the carrier."""
        self.record()
        return self._pending == 0

    def send_hello(self, version: str, cookie: str, program: str, instance: str) -> None:
        """Send HELLO."""
        data = self.session.hello(version=version, cookie=cookie.encode(), program=program, instance=instance)
        self._send(Part(data), "HELLO %s as %r, version %r", program, instance, version)

    def send_notify(self, stream_id: int, name: str, ref: int) -> None:
        """Send NOTIFY."""
        data = self.session.notify(stream_id, name, ref)
        self._send(Part(data, PartKind.NOTIFY, stream_id), "%r", Notify(stream_id, name, ref))

    def send_messages(self, run: EncodedRun) -> None:
        """Send a run of MESSAGEs. If it raises :class:`LocalProtocolError`, none of them was sent."""
        self._send(Part(self.session.messages(run), PartKind.MESSAGES, run.stream_id), "%r", run)

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
        self._send(Part(data, PartKind.END, stream_id), "%r", EosMessage(stream_id, last_id))

    async def next(self) -> Frame:
        """The worker's next frame.

        Raises :class:`TransportError` when the connection has ended for any reason, and :class:`RemoteProtocolError`
        when the worker violates the protocol; then an ERROR was sent to it.
        """
        while True:
            frame = self._next_frame()
            if frame is not None:
                self._say("<", "%r", frame)
                return frame
            data = await self._carrier.read()
            if not data:
                self._ended()
            self.session.receive(data)

    async def close(self, reason: str = "") -> None:
        """Send the collected frames, then an ERROR if there is a ``reason``, and close the connection in order."""
        if reason:
            self._send_error(self.session.error(reason), reason)
        if not self._writer.done():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._written.wait()
        self._writer.cancel()
        await asyncio.wait([self._writer])
        # A reset by the peer during the close ends only this session.
        with contextlib.suppress(OSError):
            await self._carrier.close()

    def _next_frame(self) -> Frame | None:
        try:
            return self.session.next_event()
        except RemoteProtocolError as error:
            self._send_error(self.session.fail(error.message), error.message)
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

    def _send_error(self, data: bytes | None, reason: str) -> None:
        if data is not None:
            self._send(Part(data), "ERROR %s", reason)

    def _send(self, part: Part, text: str, *values: object) -> None:
        self._say(">", text, *values)
        self._frames.append(part)
        self._pending += len(part.data)
        if len(self._frames) == 1:
            self._dirty.set()
            self._written.clear()

    async def _write(self) -> None:
        try:
            while True:
                await self._dirty.wait()
                self._dirty.clear()
                self.record()
                parts, self._frames = self._frames, []
                await self._carrier.send(parts)
                self._pending -= sum(len(part.data) for part in parts)
                if not self._frames:
                    self._written.set()
                self._on_written()
        except TransportError:
            # The reader meets the same error and raises it.
            self._written.set()

    def _say(self, sign: str, text: str, *values: object) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(f"{sign} {self.peer} {text}", *values)


Address = tuple[str, int]

REDIRECTS_IN_A_ROW = 5
"""Redirections that are followed without delay; another one without progress counts as a failed attempt.

A choice: enough for the moves of one instance, and a bound for workers that redirect to each other.
"""


BEHIND_SECONDS = 15.0
"""Seconds for which a connector reconnects to workers that request acknowledged messages again.

A worker that the driver could not reach does not know the last commits yet. The driver notifies it again every half
second, and one of its calls ends after 10 seconds at the latest; this is longer.
"""


class AddressRotation:
    """The order of attempts: a redirection first, then the address of the last session, then round-robin.

    ``instance`` decides the first address of the round-robin: connectors whose names differ spread over the workers,
    and each of them begins at the same address after a restart. ``random`` returns a number in [0, 1). Times are
    seconds of any steady clock.
    """

    def __init__(self, backoff: Backoff, random: Callable[[], float], now: float, instance: str = "") -> None:
        self._backoff = backoff
        self._random = random
        self._addresses: list[Address] = []
        self._turn = sum(instance.encode())
        self._first_choice: Address | None = None
        self.failures = 0
        """Failed attempts in a row."""
        self.down_since = now
        """The time at which the last session ended, or that of the start."""
        self.last_reason = ""
        """The reason why the last session or attempt has ended; empty before."""
        self._attempts = 0
        self._redirects = 0
        self._behind = 0
        self._behind_since = now
        self._tried: dict[str, int] = {}

    def replace(self, addresses: Sequence[Address]) -> None:
        """Set the known addresses; their order is kept."""
        self._addresses = list(addresses)

    def next(self) -> Address | None:
        """The address for the next attempt; None when none is known."""
        if self._first_choice is not None:
            address, self._first_choice = self._first_choice, None
            return address
        if not self._addresses:
            return None
        address = self._addresses[self._turn % len(self._addresses)]
        self._turn += 1
        return address

    def failed(self, where: str, reason: str) -> None:
        """An attempt at ``where`` has failed."""
        self.failures += 1
        self._attempts += 1
        self._redirects = 0
        self._tried[where] = self._tried.get(where, 0) + 1
        self.last_reason = reason

    def redirected(self, where: str, address: Address) -> None:
        """The worker at ``where`` has redirected the connector to ``address``."""
        if self._redirects >= REDIRECTS_IN_A_ROW:
            self.failed(where, f"redirected {self._redirects + 1} times in a row without a session")
            return
        self._redirects += 1
        self._tried[where] = self._tried.get(where, 0) + 1
        self._first_choice = address

    def connected(self) -> None:
        """A session has begun."""
        self._attempts = 0
        self._tried.clear()

    def behind(self, address: Address, reason: str, now: float) -> bool:
        """The worker requests acknowledged messages again. Returns whether to retry, because it may not know the
        commits.

        After :data:`BEHIND_SECONDS`, or at the limit of the back-off, the query itself must have gone back.
        """
        if not self._behind:
            self._behind_since = now
        self._behind += 1
        seconds = now - self._behind_since
        if seconds >= BEHIND_SECONDS or self._backoff.exhausted(self._behind, seconds):
            return False
        self._ended(address, reason, now, progressed=False)
        return True

    def was_long(self, seconds: float) -> bool:
        """Whether a session of this length counts as progress: it was longer than the longest delay."""
        return seconds > self._backoff.maximum

    def ended(self, address: Address, reason: str, now: float, *, progressed: bool) -> None:
        """A session has ended. If it made progress, the back-off starts again from its initial delay."""
        self._behind = 0
        self._ended(address, reason, now, progressed=progressed)

    def _ended(self, address: Address, reason: str, now: float, *, progressed: bool) -> None:
        if progressed:
            self.failures = self._redirects = 0
        else:
            self.failures += 1
        self.down_since = now
        self._first_choice = address
        self.last_reason = reason

    def delay(self, now: float) -> float:
        """Seconds to wait before the next attempt; 0 for the first one and for a redirection."""
        if not self.failures or self._redirects:
            return 0.0
        left = max(0.0, self.down_since + self._backoff.give_up_after - now)
        return min(left, self._backoff.delay(self.failures, self._random()))

    def given_up(self, now: float) -> TransportError | None:
        """The error once the limits of the back-off are reached; None before."""
        seconds = now - self.down_since
        if not self._attempts or not self._backoff.exhausted(self._attempts, seconds):
            return None
        tried = ", ".join(f"{where} ({count} times)" for where, count in self._tried.items()) or "no address"
        return TransportError(
            f"no session with a worker for {seconds:.1f} seconds; tried {tried}; the last reason was: "
            f"{self.last_reason}; check that the receiver runs and that these are its workers' addresses",
            code="no-session",
            tried=dict(self._tried),
            seconds=seconds,
            reason=self.last_reason,
        )
