"""Streams over TCP and TLS, on asyncio.

Both sides set TCP_NODELAY, because frames are small and answered at once. They set keepalive, because a connector may
send nothing for hours and a host that lost its power sends no close; it is detected after about a minute. While bytes
are in flight, keepalive sends no probes, and :class:`~.base.PeerLiveness` detects a lost host after the same time.
Source: ``docs/decisions/one-receive-buffer.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from wallaroo_spark.errors import ConfigurationError, TransportError, one_line
from wallaroo_spark.event_loop import BackgroundTasks
from wallaroo_spark.transport import base
from wallaroo_spark.transport.address import format_address
from wallaroo_spark.transport.base import (
    HIGH_WATER,
    READ_AT_MOST,
    check_port,
    closed_here,
    cut,
    describe,
    not_connected,
)
from wallaroo_spark.transport.binding import bind
from wallaroo_spark.transport.tls import names_in, received_close_notify

_log = one_line(__name__)

T = TypeVar("T")

FLUSH_SECONDS = 5.0
"""Limit in seconds of the wait in :meth:`close` for queued bytes, and for the TLS close_notify. A choice."""

LINGER_SECONDS = 1.0
"""Limit in seconds of the wait in :meth:`close` for the peer's end, after all bytes were sent. A choice."""

TLS_LINGER_SECONDS = 0.25
"""The same limit under TLS. Shorter, because asyncio's TLS cannot send its end and keep reading."""

HANDSHAKE_SECONDS = 10.0
"""Limit of the TLS handshake of an accepted connection, in seconds. A choice."""

BACKLOG = 1024
"""Maximum number of connections that wait to be accepted; the system may allow fewer (net.core.somaxconn). When a
worker is replaced, all its connectors connect to the next one at about the same time. Those that do not fit into the
queue try again a second later.
"""

FREE_SECONDS = 15.0
"""Limit of the wait for a port that is in use, in seconds.

A choice: the process of a cancelled Spark task lives on for some seconds.
"""
_PAUSE_SECONDS = 0.2
"""Seconds between two attempts to bind the port. A choice."""

_READ_AHEAD = 64 * 1024
"""The socket is not read while this many bytes wait for :meth:`read`; one more chunk can arrive on top.

A choice: it bounds a connection's memory to this plus ``_CHUNK``.
"""
_CHUNK = 256 * 1024
"""Size in bytes of the receive buffer that all connections of a thread share.

A choice: large, because it exists once for each thread, and each receive call costs a pass of the event loop.
"""
_TLS_PIECE = 64 * 1024
"""Size in bytes of the pieces in which data is written to asyncio's TLS.

TLS passes a whole write to the socket's buffer while that is below its mark, so small pieces keep close to the mark.
"""
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


async def connect(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float,  # noqa: ASYNC109 -- the limit is part of the errors' text, so it is passed in, not wrapped around
) -> ByteStream:
    """Connect to ``host:port``. ``timeout`` in seconds covers name resolution, TCP and the TLS handshake.

    With ``tls`` the certificate must be for ``host``. Raises :class:`TransportError` with the address, the cause and
    the way out; its ``fields["reason"]`` is ``refused``, ``timeout``, ``unknown host``, ``tls``, ``cut`` or
    ``unreachable``.
    """
    peer = format_address(host, port)
    loop = asyncio.get_running_loop()
    try:
        check_port(port)
        async with asyncio.timeout(timeout):
            _, stream = await loop.create_connection(
                lambda: ByteStream(peer), host, port, ssl=tls, happy_eyeballs_delay=0.25
            )
        if stream.talks_to_itself:
            stream.abort()
            await stream.close()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
    except (OSError, OverflowError, ssl.CertificateError) as error:
        raise not_connected(peer, error, timeout) from error
    return stream


async def serve(
    handler: Handler,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    backlog: int = BACKLOG,
    handshake_timeout: float = HANDSHAKE_SECONDS,
) -> Listener:
    """Listen on ``host:port`` and run ``handler`` in a task of its own for every connection.

    Port 0 is any free port, the same for every address of ``host``; an empty ``host`` means every interface, IPv4 and
    IPv6. ``handshake_timeout`` in seconds bounds only the TLS handshake. A handler that raises is logged and ends only
    its own connection. Raises :class:`TransportError` when the address cannot be bound.
    """
    sockets = await bind(host, port, backlog)
    listener = Listener(handler, tls, handshake_timeout, _socket_address(sockets[0]))
    loop = asyncio.get_running_loop()
    for bound in sockets:
        listener.servers.append(await loop.create_server(listener.accept, sock=bound, backlog=backlog))
    return listener


async def serve_once_free(
    handler: Handler, host: str, port: int, *, tls: ssl.SSLContext | None = None, stopped: asyncio.Event
) -> Listener | None:
    """:func:`once_free` with :func:`serve`."""
    return await once_free(lambda: serve(handler, host, port, tls=tls), stopped)


async def once_free(listen: Callable[[], Awaitable[T]], stopped: asyncio.Event) -> T | None:
    """Call a function that listens at a port, again while the port is in use; None when ``stopped`` is set meanwhile.

    Raises :class:`ConfigurationError` when the port does not become free, and at once for any other error.
    """
    until = time.monotonic() + FREE_SECONDS
    while not stopped.is_set():
        try:
            return await listen()
        except TransportError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise ConfigurationError(error.message, code=error.code, **error.fields) from error
            if time.monotonic() > until:
                raise ConfigurationError(
                    f"{error.message}; another program has held it for {FREE_SECONDS:g} seconds, which is longer than "
                    "a predecessor may take to end",
                    code="cannot-listen",
                    **error.fields,
                ) from error
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _PAUSE_SECONDS)
    return None


def tune(connection: Any) -> None:
    """Set no-delay and keepalive (30 s idle, then 3 probes 10 s apart), as far as the platform supports them."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


_of_thread = threading.local()


def _received() -> memoryview:
    """The buffer into which all connections of this thread's event loop receive, one chunk at a time.

    If each chunk were received into a block of its own, which is then cut to its size, the allocator would keep the
    rest of each block. The rest is too small for the next chunk, so it would not be used again.
    """
    found: memoryview | None = getattr(_of_thread, "received", None)
    if found is None:
        found = _of_thread.received = memoryview(bytearray(_CHUNK))
    return found


_NO_CHUNKS: deque[bytes] = deque()
"""Stands for an empty deque, which would take 624 bytes for each connection. Nothing is ever appended to it."""


class ByteStream(asyncio.BufferedProtocol):
    """Bytes to and from one peer, in order, with back-pressure in both directions, over TCP or TLS.

    Only one task may read at a time; several may write and drain. After this side's :meth:`close`, ``read`` returns
    ``b""``; after :meth:`abort` by either side it raises. In both cases further writes are dropped and ``drain``
    raises, so that a writer that drains notices the end.

    A chunk has exactly the received bytes. The listener passes ``on_connected``, in which it starts to serve the
    stream. A worker may have ten thousand idle streams, so the objects for waiting are made at the first wait.
    """

    def __init__(self, peer: str = "", on_connected: Callable[[ByteStream], None] | None = None) -> None:
        self.peer = peer
        """The peer as ``host:port``, for log lines and error messages."""
        self.certificate_names: tuple[str, ...] = ()
        """Common name and alternative names in the peer's verified certificate; empty without one."""
        self._on_connected = on_connected
        self._transport: Any = None
        self._tls = False
        self._chunks = _NO_CHUNKS
        self._taken = 0
        self._held = 0
        self._ended = False
        self._closing = False
        self._failure: TransportError | None = None
        self._lost = False
        self._writable = True
        self._changed: asyncio.Event | None = None
        """Set at every change that :meth:`_until` may wait for; None before the first wait."""
        self._receiver: Callable[[bytes], None] | None = None
        """The function that is called with arriving bytes; None while they are read."""
        self._delivering = True
        self._delivery: asyncio.Future[None] | None = None
        """Done when nothing more will be delivered."""
        self._liveness: base.PeerLiveness | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is made, or has changed to TLS."""
        self._transport = transport
        self._tls = transport.get_extra_info("ssl_object") is not None
        self.certificate_names = names_in(transport.get_extra_info("peercert"))
        self.peer = self.peer or _peer_name(transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        with contextlib.suppress(OSError):
            # The first read reports a peer that is gone already.
            tune(transport.get_extra_info("socket"))
        if self._on_connected:
            callback, self._on_connected = self._on_connected, None
            callback(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer of the next receive call."""
        return _received()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes were received."""
        if self._closing:
            return
        data = bytes(_received()[:nbytes])
        if self._receiver is not None and self._delivering and not self._chunks:
            self._hand_over(self._receiver, data)
            return
        if self._chunks is _NO_CHUNKS:
            self._chunks = deque()
        self._chunks.append(data)
        self._held += nbytes
        self._wake()
        if self._held >= _READ_AHEAD:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The peer has ended its side. Returns whether this side stays open."""
        if self._tls and not self._closing and not received_close_notify(self._transport.get_extra_info("ssl_object")):
            detail = "the peer ended without a TLS close_notify; it may have refused our certificate"
            self._failure = self._failure or cut(self.peer, detail)
        self._ended = True
        self._wake()
        # Over plain TCP a peer may end its side and still read ours; asyncio's TLS has no half-closed state.
        return not self._tls

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended, with an error if it was cut."""
        if exc is not None or not (self._ended or self._closing):
            detail = describe(exc) if exc else "the connection ended without a close"
            self._failure = self._failure or cut(self.peer, detail)
        self._ended = self._writable = self._lost = True
        self._wake()

    def pause_writing(self) -> None:
        """The high-water mark is reached."""
        self._writable = False

    def resume_writing(self) -> None:
        """The queued bytes are below the mark again."""
        self._writable = True
        self._wake()

    # The stream.

    @property
    def queued(self) -> int:
        """Written bytes that the kernel has not taken yet.

        Under TLS this counts the bytes that were not yet passed to the socket's own buffer, which holds up to 192 KiB
        more.
        """
        return 0 if self._lost else int(self._transport.get_write_buffer_size())

    async def read(self, most: int = READ_AT_MOST) -> bytes:
        """Return the next 1 to ``most`` bytes, or ``b""`` once the peer has ended its side.

        Bytes that arrived before the connection was cut are returned first. Raises :class:`TransportError` when it was
        cut.
        """
        await self._until(lambda: self._chunks or self._ended or self._closing)
        if self._chunks:
            return self._take(most)
        if self._failure and not self._closing:
            raise self._failure
        return b""

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        """Call ``received`` with bytes as soon as they arrive, in place of :meth:`read`; return when the peer has ended
        its side.

        Raises :class:`TransportError` when the connection was cut, after the bytes that arrived before. An error of
        ``received`` is raised here too, and ``received`` is not called again.
        """
        self._delivery = asyncio.get_running_loop().create_future()
        self._receiver = received
        try:
            self._continue_delivery()
            await self._delivery
        finally:
            self._receiver = self._delivery = None
        if self._failure and not self._closing:
            raise self._failure

    def set_delivering(self, on: bool) -> None:
        """Continue or suspend the calls of :meth:`deliver`. While they are suspended, the socket is read as far as for
        :meth:`read`.
        """
        if on and not self._delivering:
            # Not at once: the caller may still be handling the bytes before.
            asyncio.get_running_loop().call_soon(self._continue_delivery)
        self._delivering = on

    def write(self, data: bytes) -> None:
        """Queue ``data`` for sending. Never blocks and never raises; see :meth:`drain`."""
        if self._closing or self._failure or self._lost:
            return
        if self._liveness is None:
            self._liveness = base.PeerLiveness()
            _watch(self)
        if not self._tls or len(data) <= _TLS_PIECE:
            self._transport.write(data)
            return
        view = memoryview(data)
        for start in range(0, len(view), _TLS_PIECE):
            self._transport.write(view[start : start + _TLS_PIECE])

    async def drain(self) -> None:
        """Wait until fewer bytes than the high-water mark are queued.

        Raises :class:`TransportError` when the connection was cut, or was closed by this side.
        """
        if not self._writable:
            await self._until(lambda: self._writable)
        if self._failure:
            raise self._failure
        if self._closing:
            raise closed_here(self.peer)
        if self._lost:
            raise cut(self.peer, "the peer has closed")

    async def close(self) -> None:
        """Send the queued bytes, within a bounded time, and close. May be called again. Never raises when the peer is
        gone.
        """
        if not self._closing and not self._failure:
            self._closing = True
            self._drop_received()
            sent = False
            try:
                sent = await self._farewell()
            finally:
                self._end(reset=not sent)
        await self._until(lambda: self._lost)

    @property
    def talks_to_itself(self) -> bool:
        """Whether the connection leads to itself: no program listens at the port, and the system chose it as our own.

        This happens on one machine, with an ephemeral port, once in about 30,000 attempts. While the connection lasts,
        no program can listen at that port.
        """
        return bool(self._transport.get_extra_info("sockname") == self._transport.get_extra_info("peername"))

    def abort(self) -> None:
        """Close at once. Queued bytes are lost, and the peer receives a reset instead of an end."""
        self._failure = self._failure or cut(self.peer, "aborted by this side")
        self._drop_received()
        self._end(reset=True)

    async def secure(self, context: ssl.SSLContext, seconds: float) -> None:
        """Change to TLS as the accepting side. Raises OSError when the handshake fails or exceeds ``seconds``."""
        loop = asyncio.get_running_loop()
        try:
            upgraded = await loop.start_tls(
                self._transport, self, context, server_side=True, ssl_handshake_timeout=seconds
            )
            if upgraded is None:
                raise ConnectionAbortedError("the peer closed during the handshake")
        except BaseException as error:
            # asyncio does not always report the loss of a connection whose handshake did not finish.
            self._transport.abort()
            self.connection_lost(error if isinstance(error, Exception) else None)
            raise
        self.connection_made(upgraded)

    def pause(self) -> None:
        """Stop reading the socket, so that :meth:`secure` receives the whole handshake."""
        self._transport.pause_reading()

    def look(self) -> bool:
        """End the connection if its peer acknowledges nothing any more; return whether bytes are still in flight."""
        seen = None if self._lost else base.inspect(self._transport.get_extra_info("socket"))
        if seen is None or self._liveness is None or not (seen.queued or self.queued):
            self._liveness = None
        elif self._liveness.gone(seen, asyncio.get_running_loop().time()):
            detail = f"it has acknowledged no sent bytes for {base.GONE_SECONDS:g} s; its host may be gone"
            self._failure = self._failure or cut(self.peer, detail)
            self._end(reset=True)
        else:
            return True
        return False

    async def _until(self, holds: Callable[[], Any]) -> None:
        """Wait until a condition on this stream holds."""
        while not holds():
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()

    def _wake(self) -> None:
        """Wake the waiting tasks, so that they check their conditions again."""
        if self._changed is not None:
            self._changed.set()
        over = self._closing or (self._ended and not self._chunks)
        if over and self._delivery is not None and not self._delivery.done():
            self._delivery.set_result(None)

    def _continue_delivery(self) -> None:
        """Deliver the bytes that were received and not delivered yet."""
        while self._chunks and self._delivering and self._receiver is not None:
            self._hand_over(self._receiver, self._take(READ_AT_MOST))
        self._wake()

    def _hand_over(self, receiver: Callable[[bytes], None], data: bytes) -> None:
        try:
            receiver(data)
        except Exception as error:
            self._receiver = None
            if self._delivery is not None and not self._delivery.done():
                self._delivery.set_exception(error)

    def _take(self, most: int) -> bytes:
        chunk = self._chunks[0]
        if self._taken or len(chunk) > most:
            piece = chunk[self._taken : self._taken + most]
            self._taken += len(piece)
        else:
            piece, self._taken = chunk, len(chunk)
        if self._taken == len(chunk):
            self._chunks.popleft()
            self._taken = 0
        self._held -= len(piece)
        if self._held < _READ_AHEAD and not self._lost:
            self._transport.resume_reading()
        return piece

    def _drop_received(self) -> None:
        self._chunks = _NO_CHUNKS
        self._taken = self._held = 0
        self._wake()

    async def _farewell(self) -> bool:
        """Send the queued bytes and close so that the peer can read all of them. Returns False when it did not read
        them.

        Closing a socket with unread bytes resets the connection, and the reset can overtake the bytes that were sent
        last, such as an ERROR frame. So this side ends its half, and reads and drops bytes for a bounded time.
        """
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                if self.queued:
                    # asyncio's TLS pauses writing at its mark, its TCP only above the mark.
                    self._transport.set_write_buffer_limits(high=int(self._tls), low=0)
                await self._until(lambda: self._writable)
        except TimeoutError:
            _log.debug("%s does not read the bytes that are queued for it", self.peer)
            return False
        if not self._tls and not self._lost:
            # The peer's reset may have arrived already without being reported.
            with contextlib.suppress(OSError):
                self._transport.write_eof()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TLS_LINGER_SECONDS if self._tls else LINGER_SECONDS):
                if not self._lost:
                    self._transport.resume_reading()
                await self._until(lambda: self._ended)
        if self._tls:
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TLS_LINGER_SECONDS):
                    await self._until(lambda: self._lost)
        return True

    def _end(self, *, reset: bool) -> None:
        if self._lost:
            return
        if reset:
            # After an orderly end the peer would take the received bytes for all bytes.
            with contextlib.suppress(OSError):
                linger = self._transport.get_extra_info("socket")
                linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()


_watched: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, set[ByteStream]] = weakref.WeakKeyDictionary()
"""The streams of each event loop that have bytes in flight; one timer of the loop inspects all of them."""


def _watch(stream: ByteStream) -> None:
    """Inspect a stream from now on, while it has bytes in flight."""
    loop = asyncio.get_running_loop()
    streams = _watched.setdefault(loop, set())
    if not streams:
        loop.call_later(base.LOOK_SECONDS, _look, loop, streams)
    streams.add(stream)


def _look(loop: asyncio.AbstractEventLoop, streams: set[ByteStream]) -> None:
    streams.difference_update([stream for stream in streams if not stream.look()])
    if streams:
        loop.call_later(base.LOOK_SECONDS, _look, loop, streams)


# l_onoff and l_linger of SO_LINGER: drop the queued bytes and send a reset.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


Handler = Callable[[ByteStream], Awaitable[None]]
"""Serves one accepted stream. The stream is closed when the handler returns, and aborted when it is cancelled."""


@dataclass(eq=False)
class Listener:
    """A bound address at which peers connect: its sockets, and a task for each connection."""

    handler: Handler
    tls: ssl.SSLContext | None
    handshake_timeout: float
    """Seconds for a TLS handshake."""
    address: tuple[str, int]
    """The bound host and port; port 0 is replaced by the port that the system chose."""
    servers: list[asyncio.Server] = field(default_factory=list)
    _tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def accept(self) -> ByteStream:
        """A peer has connected: make its stream."""
        return ByteStream(on_connected=self._start)

    async def close(self, wait_seconds: float = 5.0) -> None:
        """Stop accepting, then wait up to ``wait_seconds`` for the handlers; they are not cancelled."""
        for server in self.servers:
            server.close()
        # A handler may close its own listener; its task cannot wait for itself.
        await self._tasks.wait(wait_seconds)

    def _start(self, stream: ByteStream) -> None:
        if self.tls:
            stream.pause()
        self._tasks.start(self._run(stream))

    async def _run(self, stream: ByteStream) -> None:
        if self.tls:
            try:
                await stream.secure(self.tls, self.handshake_timeout)
            except OSError as error:
                _log.warning("TLS handshake with %s failed: %s", stream.peer, describe(error))
                return
        try:
            await self.handler(stream)
        except asyncio.CancelledError:
            stream.abort()
            raise
        except TransportError as error:
            _log.info("%s", error)
        except Exception:
            _log.exception("serving %s failed; its connection is closed", stream.peer)
        await stream.close()


def _socket_address(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return str(host), int(port)


def _peer_name(transport: asyncio.BaseTransport) -> str:
    address = transport.get_extra_info("peername")
    if not address:
        return "unknown"
    return format_address(str(address[0]).removeprefix("::ffff:"), int(address[1]))
