"""A TCP proxy that can imitate network failures and be watched.

It does not parse the bytes, so it can stand in front of any server: a worker, a sink, Redis. A :class:`Watcher` sees
the bytes that pass, and :class:`Trouble` is set by the program. :class:`Faults` are a function of a seed: the offsets
in a stream of bytes at which to pause, cut and split. The places are counted in bytes and drawn from the seed, the
connection's number and the direction, so that they do not depend on how the bytes arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from wallaroo_spark.errors import ConfigurationError, TransportError, WallarooError
from wallaroo_spark.event_loop import LoopThread, end_tasks
from wallaroo_spark.transport import format_address

STUTTER_BYTES = 16 * 1024
"""Mean number of bytes between two pauses. A choice: a few pauses in each megabyte."""


@dataclass(frozen=True)
class Faults:
    """The faults of a proxy. By default there are none.

    Raises :class:`ConfigurationError` for a number below zero.
    """

    delay: float = 0.0
    """Seconds by which all bytes arrive later. Order and throughput stay as they are."""
    stutter: float = 0.0
    """Mean length in seconds of the pauses; 0: none."""
    stutter_bytes: int = STUTTER_BYTES
    """Mean number of bytes between two pauses."""
    cut: int = 0
    """Mean number of bytes of one direction after which the connection is cut, often within a frame; 0: never.

    Half of the cuts end the connection in order, half with a reset.
    """
    split: int = 0
    """Most bytes that pass at once, each piece in a packet of its own as far as the system allows; 0: no limit."""
    seed: int = 0
    """The same seed draws the same places."""

    def __post_init__(self) -> None:
        least = {"delay": 0, "stutter": 0, "stutter_bytes": 1, "cut": 0, "split": 0}
        for name, minimum in least.items():
            if (value := getattr(self, name)) < minimum:
                raise ConfigurationError(
                    f"fault {name} is {value}; it is {minimum} or more", code="option-out-of-range", fault=name
                )

    def __bool__(self) -> bool:
        return bool(self.delay or self.stutter or self.cut or self.split)


@dataclass(frozen=True)
class Pause:
    """Nothing passes in this direction for some seconds."""

    seconds: float
    """Length of the pause."""
    offset: int
    """Bytes of the direction that have passed before."""


@dataclass(frozen=True)
class Cut:
    """The connection ends here, in both directions."""

    reset: bool
    """Whether it ends with a reset."""
    offset: int
    """Bytes of the direction that have passed before."""


class FaultSchedule:
    """The faults of one direction of one connection."""

    def __init__(self, faults: Faults, connection: int, sender: str) -> None:
        place = f"{faults.seed}/{connection}/{sender}"
        # A generator for each kind of fault: the places of one do not depend on the others.
        self._stutters, self._cuts, self._splits = (random.Random(f"{place}/{kind}") for kind in range(3))
        self._faults = faults
        self._passed = 0
        self._pause_at = self._stutters.randint(1, 2 * faults.stutter_bytes) if faults.stutter else None
        self._cut_at = self._cuts.randint(1, 2 * faults.cut) if faults.cut else None
        self._split_at = self._next_split()

    def pieces(self, data: bytes) -> Iterator[bytes | Pause | Cut]:
        """The next bytes of the direction as pieces to pass on one by one, with the faults between them.

        A :class:`Cut` is the last item.
        """
        while data:
            places = [at for at in (self._pause_at, self._cut_at, self._split_at) if at is not None]
            count = min([len(data), *(at - self._passed for at in places)])
            piece, data = data[:count], data[count:]
            self._passed += count
            yield piece
            if self._passed == self._split_at:
                self._split_at = self._next_split()
            if self._passed == self._cut_at:
                yield Cut(self._cuts.random() < 0.5, self._passed)
                return
            if self._passed == self._pause_at:
                yield Pause(self._faults.stutter * self._stutters.uniform(0.5, 1.5), self._passed)
                self._pause_at = self._passed + self._stutters.randint(1, 2 * self._faults.stutter_bytes)

    def _next_split(self) -> int | None:
        return self._passed + self._splits.randint(1, self._faults.split) if self._faults.split else None


CHUNK = 16 * 1024
"""Bytes that one read takes. A choice."""
SLOW_BYTES = 4 * 1024
"""Bytes that pass at a time with ``SLOW``; with ``SLOW_PAUSE`` that is at most 400 kB/s."""
SLOW_PAUSE = 0.01
"""Seconds between two such pieces."""
DELAYED_CHUNKS = 4096
"""Most chunks that a delay holds for a direction; a sender that is faster waits. A choice: up to 64 MiB."""
NO_FAULTS = Faults()


class Trouble(StrEnum):
    """Treatment of the bytes, in both directions unless stated otherwise."""

    NONE = "passed on"
    SWALLOW = "read and dropped: the connection is half open"
    SLOW = "passed on at some 400 kB/s"
    DRIP = "passed on one byte at a time"
    STALL = "not read from the target, so that its sent bytes wait"


_PIECES = {Trouble.SLOW: (SLOW_BYTES, SLOW_PAUSE), Trouble.DRIP: (1, 0.0)}
"""The bytes that pass at a time, and the seconds in front of them; 0: one pass of the loop, so that each byte is sent
alone."""


class End(StrEnum):
    """The two ends of a connection through a proxy."""

    CONNECTOR = "connector"
    """The end that has connected to the proxy."""
    WORKER = "worker"
    """The target, to which the proxy has connected."""


class Watcher:
    """Sees the connections of a proxy; this one ignores them.

    Its methods are called in the proxy's thread, in the order of events.
    A :class:`~wallaroo_spark.errors.WallarooError` that one of them raises ends the connection.
    """

    def opened(self, connection: int, peer: str) -> None:
        """A connection, counted from 1, was accepted from the address ``peer``."""

    def passed(self, connection: int, sender: End, data: bytes) -> None:
        """These bytes of ``sender`` are passed on next."""

    def fault(self, connection: int, text: str) -> None:
        """The proxy disturbs the connection now, as ``text`` says."""

    def closed(self, connection: int, cause: str) -> None:
        """The connection has ended."""


class Proxy:
    """Listens on an address of its own and connects to ``target``, in a thread with an event loop.

    It is a context manager. Any thread may call its methods; their effect has happened when they return. By default it
    listens on any free port of the loopback. With ``tls`` it accepts TLS, with ``target_tls`` it speaks TLS to the
    target. Entering raises :class:`TransportError` when the address cannot be bound.
    """

    def __init__(
        self,
        target: tuple[str, int],
        listen: tuple[str, int] = ("127.0.0.1", 0),
        *,
        tls: ssl.SSLContext | None = None,
        target_tls: ssl.SSLContext | None = None,
        faults: Faults = NO_FAULTS,
        watcher: Watcher | None = None,
    ) -> None:
        self._target = target
        self._host, self.port = listen
        self._tls, self._target_tls = tls, target_tls
        self._faults = faults
        self._watcher = watcher or Watcher()
        self._server: asyncio.Server | None = None
        self._held: list[socket.socket] = []
        """While connections are refused: keep the port from others, who would get it as any free one."""
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends = 0
        self._trouble = Trouble.NONE
        self._changed = asyncio.Event()
        self.connections = 0
        """Number of accepted connections."""
        self.swallowed = 0
        """Number of dropped bytes."""

    def __enter__(self) -> Proxy:
        self._thread = LoopThread("proxy")
        try:
            self._do(self._open)
        except OSError as error:
            self._thread.stop()
            address = format_address(self._host, self.port)
            raise TransportError(
                f"cannot listen on {address}: {error.strerror or error}; choose another address, or port 0 for any "
                "free port",
                code="cannot-listen",
                address=address,
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._thread.stop()

    @property
    def address(self) -> str:
        """The address to connect to."""
        return format_address(self._host, self.port)

    def become(self, trouble: Trouble) -> None:
        """Treat the bytes of all present and future connections in this way."""

        async def change() -> None:
            self._trouble = trouble
            self._changed.set()
            self._changed = asyncio.Event()

        self._do(change)

    def cut(self) -> None:
        """Close all connections in order, possibly within a frame."""
        self._do(lambda: self._end(reset=False))

    def reset(self) -> None:
        """End all connections with a reset."""
        self._do(lambda: self._end(reset=True))

    def refuse(self) -> None:
        """End all connections and refuse new ones, until :meth:`accept`."""
        self._do(self._refuse)

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._do(self._open)

    def lead_to(self, target: tuple[str, int]) -> None:
        """Connect new connections to another target. Existing connections are not changed."""
        self._target = target

    def _do(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def in_time() -> None:
            async with asyncio.timeout(10):
                await work()

        self._thread.call(in_time)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, self._host or None, self.port, limit=CHUNK, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._release()

    def _release(self) -> None:
        for one in self._held:
            one.close()
        self._held.clear()

    async def _refuse(self) -> None:
        assert self._server is not None
        places = [(one.family, one.getsockname()) for one in self._server.sockets]
        self._server.close()
        for family, place in places:
            held = socket.socket(family, socket.SOCK_STREAM)
            self._held.append(held)
            # One that does not listen either lets the next listener have the port.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(place)
        await self._end(reset=True)

    async def _close(self) -> None:
        await self._refuse()
        self._release()
        await end_tasks(*self._tasks)

    async def _end(self, *, reset: bool) -> None:
        self._ends += 1
        for link in list(self._links):
            link.end(reset=reset)
        self._links.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        connection = self.connections
        cause = "the proxy has ended"
        try:
            self._watcher.opened(connection, _peer(writer))
            cause = await self._connect(connection, reader, writer)
        except WallarooError as error:
            cause = error.message
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            # The watcher already knows its own failure.
            with contextlib.suppress(WallarooError):
                self._watcher.closed(connection, cause)

    async def _connect(self, connection: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Connect to the target and pass bytes on until the connection ends; return the cause of the end."""
        ends = self._ends
        host, port = self._target
        verified = host if self._target_tls else None
        try:
            far_reader, far_writer = await asyncio.open_connection(
                host, port, limit=CHUNK, ssl=self._target_tls, server_hostname=verified
            )
        except OSError as error:
            writer.close()
            return f"the target {format_address(host, port)} cannot be reached: {error.strerror or error}"
        if self._ends != ends or self._server is None or not self._server.is_serving():
            # All connections were ended while this one was made.
            writer.transport.abort()
            far_writer.transport.abort()
            return "ended by the proxy"
        link = _Link(writer, far_writer)
        self._links.add(link)
        ways = [
            _Direction(connection, sender, source, target, link, FaultSchedule(self._faults, connection, sender))
            for sender, source, target in ((End.CONNECTOR, reader, far_writer), (End.WORKER, far_reader, writer))
        ]
        directions = [asyncio.ensure_future(self._pump(way)) for way in ways]
        try:
            ended, _ = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            if all(direction.exception() is None and direction.result() for direction in ended):
                # One end has sent all of its bytes, and may still read those of the other.
                await asyncio.wait(directions)
        finally:
            self._links.discard(link)
            await end_tasks(*directions)
            link.end(reset=False)
            for direction in directions:
                if not direction.cancelled() and (failure := direction.exception()) is not None:
                    raise failure
        return link.cause or "ended by the proxy"

    async def _pump(self, way: _Direction) -> bool:
        """Pass on the bytes of one direction until it ends; return whether its end was passed on, too."""
        delayed: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(DELAYED_CHUNKS)
        loop = asyncio.get_running_loop()

        async def pass_delayed() -> bool:
            while True:
                due, data = await delayed.get()
                await asyncio.sleep(due - loop.time())
                if not data or not await self._pass_on(data, way):
                    return not data and way.pass_end()

        passing = asyncio.ensure_future(pass_delayed()) if self._faults.delay else None
        try:
            while True:
                data = await self._read(way)
                if passing is not None:
                    await delayed.put((loop.time() + self._faults.delay, data))
                    if not data or passing.done():
                        return await passing
                elif not data or not await self._pass_on(data, way):
                    return not data and way.pass_end()
        except OSError as error:
            way.link.ended(f"the connection broke within the bytes of the {way.sender}: {error.strerror or error}")
            return False
        finally:
            if passing is not None:
                passing.cancel()
                await asyncio.wait([passing])

    async def _read(self, way: _Direction) -> bytes:
        data = await way.reader.read(CHUNK)
        while data and way.sender is End.WORKER and self._trouble is Trouble.STALL:
            await self._changed.wait()
        if not data:
            way.link.ended(f"the {way.sender} closed")
        return data

    async def _pass_on(self, data: bytes, way: _Direction) -> bool:
        """Pass bytes on, with the faults that are due within them. Returns whether the connection goes on."""
        for piece in way.schedule.pieces(data):
            match piece:
                case Pause(seconds, offset):
                    text = f"bytes of the {way.sender} pause for {seconds:.3f} s behind byte {offset}"
                    self._watcher.fault(way.connection, text)
                    await asyncio.sleep(seconds)
                case Cut(reset, offset):
                    manner = "with a reset" if reset else "in order"
                    cause = f"cut by the proxy behind byte {offset} of the {way.sender}, {manner}"
                    self._watcher.fault(way.connection, cause)
                    way.link.ended(cause)
                    way.link.end(reset=reset)
                    return False
                case bytes():
                    await self._trouble_with(piece, way)
                    if self._faults.split:
                        # One pass of the loop, so that each piece is sent alone.
                        await asyncio.sleep(0)
        return True

    async def _trouble_with(self, data: bytes, way: _Direction) -> None:
        while data:
            if self._trouble is Trouble.SWALLOW:
                self.swallowed += len(data)
                return
            count, pause = _PIECES.get(self._trouble, (len(data), None))
            piece, data = data[:count], data[count:]
            if pause is not None:
                await asyncio.sleep(pause)
            self._watcher.passed(way.connection, way.sender, piece)
            way.writer.write(piece)
            await way.writer.drain()


class _Link:
    """The two sockets of one connection through the proxy."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self._ends = ends
        self.cause = ""
        """The first cause of its end; empty while there is none."""

    def ended(self, cause: str) -> None:
        """Remember the first cause of the end."""
        self.cause = self.cause or cause

    def end(self, *, reset: bool) -> None:
        """Close both sockets, in order or with a reset."""
        for writer in self._ends:
            if reset:
                # With SO_LINGER of zero seconds the kernel sends RST instead of FIN.
                linger = struct.pack("ii", 1, 0)
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            else:
                writer.close()


@dataclass
class _Direction:
    """One direction of one connection."""

    connection: int
    sender: End
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    link: _Link
    schedule: FaultSchedule

    def pass_end(self) -> bool:
        """End the direction as its sender has. Returns False where that would end both directions, as with TLS."""
        if not self.writer.can_write_eof():
            return False
        self.writer.write_eof()
        return True


def _peer(writer: asyncio.StreamWriter) -> str:
    address = writer.get_extra_info("peername")
    return format_address(str(address[0]), int(address[1])) if address else "unknown"
