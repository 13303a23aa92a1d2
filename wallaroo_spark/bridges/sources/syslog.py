"""Messages of syslog over UDP and TCP. Nobody keeps them: they are delivered at most once, and losses are counted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

from wallaroo_spark.bridges.bridge import Bridge, Promise
from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError, one_line
from wallaroo_spark.settings import Kind, row, setting
from wallaroo_spark.transport import parse_address

_log = one_line("wallaroo_spark.bridges")

TELL_SECONDS = 5.0
"""Shortest time between two lines of the log that say what was lost."""
GROUP_DATAGRAMS = 512
"""Most datagrams that are taken at once."""
KERNEL_BYTES = 8 << 20
"""Bytes of datagrams that the kernel is asked to keep; its own limit (net.core.rmem_max) may be lower."""
RECORD_BYTES = 192
"""Bytes that are counted for each message beside its own. Measured with tracemalloc (CPython 3.11): 188."""
_SO_RXQ_OVFL = 40
"""Linux: with each datagram, how many were dropped before it."""


@dataclass(eq=False, kw_only=True)
class SyslogBridge(Bridge):
    """Send what is sent to ADDRESS (host:port) by syslog, RFC 5424 or 3164, over UDP and TCP.

    A message is sent as it came: a datagram of UDP, also of a program that knows nothing of syslog, and of TCP a line
    or what a length is in front of. The key is the sender's address, the event time that of arrival. Nobody keeps the
    messages: those that come while the receiver is away or slow are lost when the buffer is full, and counted.

    Examples:
        wallaroo-spark bridge syslog 0.0.0.0:5514 --workers host-a:7100
    """

    promise = Promise("none", "nothing", "at most once")

    address: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """Where it listens."""
    buffer: int = setting(64 << 20, Kind.BYTES, minimum=65536)
    """Bytes of messages that wait for the receiver. Beyond it datagrams are dropped, and connections not read."""
    longest: int = setting(64 << 10, Kind.BYTES, minimum=480)
    """Bytes of the longest message over TCP; the connection of a longer one is closed."""

    @property
    def place(self) -> str:
        """The address."""
        return self.address

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream."""
        yield [SyslogStream(self)]


class SyslogStream(BridgedStream):
    """The messages that arrive."""

    replayable = False
    passing = ()

    def __init__(self, settings: SyslogBridge) -> None:
        super().__init__("syslog")
        self._settings = settings
        self._waiting: list[Record] = []
        self._bytes = 0
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None
        self._told, self._told_at = 0, -TELL_SECONDS
        self.dropped = 0
        """Datagrams that found the buffer full."""
        self.overflown = 0
        """Datagrams that the kernel has dropped, because they were not taken soon enough."""

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """What arrives from now on, and what has waited for the receiver."""
        async with self._listening():
            while True:
                found, self._waiting, self._bytes = self._waiting, [], 0
                self._arrived.clear()
                self._taken.set()
                yield found
                await self._arrived.wait()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        host, port = parse_address(self._settings.address)
        loop = asyncio.get_running_loop()
        try:
            server = await asyncio.start_server(self._connected, host, port, limit=self._settings.longest)
            datagrams = socket.socket(server.sockets[0].family, socket.SOCK_DGRAM)
            datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
            with contextlib.suppress(OSError):
                datagrams.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
            datagrams.setblocking(False)
            datagrams.bind(server.sockets[0].getsockname())
        except OSError as error:
            raise ConfigurationError(
                f"the syslog bridge cannot listen at {self._settings.address}: {error}; choose another port (below "
                "1024 only for root), or end what listens there",
                code="source-setup",
            ) from error
        loop.add_reader(datagrams, self._take, datagrams)
        try:
            yield
        finally:
            loop.remove_reader(datagrams)
            self._tell()
            datagrams.close()
            server.close()

    def _take(self, datagrams: socket.socket) -> None:
        before = self.dropped + self.overflown
        for _ in range(GROUP_DATAGRAMS):
            try:
                data, facts, _, sender = datagrams.recvmsg(65536, socket.CMSG_SPACE(4))
            except (BlockingIOError, ConnectionError):
                break
            for level, kind, value in facts:
                if (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                    (self.overflown,) = struct.unpack("I", value)
            if self._bytes >= self._settings.buffer:
                self.dropped += 1
            else:
                self._keep(data.rstrip(b"\r\n\0"), sender[0])
        if self.dropped + self.overflown > before and self._telling is None:
            # Also while nobody takes messages, which is when they are lost.
            delay = max(0.0, self._told_at + TELL_SECONDS - time.monotonic())
            self._telling = asyncio.get_running_loop().call_later(delay, self._tell)

    def _tell(self) -> None:
        """Log what was lost since the last time."""
        lost = self.dropped + self.overflown
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        if lost > self._told:
            _log.warning(
                "source %r: %d datagrams were lost, and %d since it was begun: %d found the bridge's buffer full, and "
                "%d the kernel's",
                self.name,
                lost - self._told,
                lost,
                self.dropped,
                self.overflown,
            )
            self._told, self._told_at = lost, time.monotonic()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender = (writer.get_extra_info("peername") or ("",))[0]
        try:
            while (message := await self._message(reader)) is not None:
                while self._bytes >= self._settings.buffer:
                    self._taken.clear()
                    await self._taken.wait()
                self._keep(message, sender)
        except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.warning("source %r: the connection of %s is closed: %s", self.name, sender, error)
        except OSError:
            pass
        finally:
            writer.close()

    async def _message(self, reader: asyncio.StreamReader) -> bytes | None:
        """The next message of a connection, None at its end. Raises ValueError for one that is too long."""
        first = await reader.read(1)
        if not first:
            return None
        if first.isdigit():
            length = int(first + (await reader.readuntil(b" "))[:-1])
            if length > self._settings.longest:
                raise ValueError(
                    f"a message has {length} bytes, and at most {self._settings.longest} are read (--longest)"
                )
            return await reader.readexactly(length)
        return (first + await reader.readline()).rstrip(b"\r\n")

    def _keep(self, message: bytes, sender: str) -> None:
        self._waiting.append(Record(None, message, time.time_ns(), sender.encode()))
        self._bytes += RECORD_BYTES + len(message)
        self._arrived.set()
