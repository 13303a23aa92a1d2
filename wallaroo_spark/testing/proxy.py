"""A TCP proxy that imitates network failures: cut, reset, swallow, slow down, drip, stall.

It does not parse the bytes, so it can stand in front of any server: a worker, a sink, Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

from wallaroo_spark.loop_thread import LoopThread

CHUNK = 16 * 1024
"""Bytes that one read takes. A choice."""
SLOW_BYTES = 4 * 1024
"""Bytes that pass at a time with ``SLOW``; with ``SLOW_PAUSE`` that is at most 400 kB/s."""
SLOW_PAUSE = 0.01
"""Seconds between two such pieces."""


class Trouble(StrEnum):
    """Treatment of the bytes, in both directions unless stated otherwise."""

    NONE = "passed on"
    SWALLOW = "read and dropped: the connection is half open"
    SLOW = "passed on at some 400 kB/s"
    DRIP = "passed on one byte at a time"
    STALL = "not taken from the target: what it writes piles up"


class Proxy:
    """Listens on a loopback port of its own and connects to ``target``, in a thread with an event loop.

    It is a context manager. Any thread may call its methods; their effect has happened when they return.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends = 0
        self._trouble = Trouble.NONE
        self._changed = asyncio.Event()
        self.port = 0
        self.connections = 0
        """Number of accepted connections."""
        self.swallowed = 0
        """Number of dropped bytes."""

    def __enter__(self) -> Proxy:
        self._thread = LoopThread("proxy")
        self._do(self._open)
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close)
        self._thread.stop()

    @property
    def address(self) -> str:
        """The address to connect to."""
        return f"127.0.0.1:{self.port}"

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

        async def shut() -> None:
            assert self._server is not None
            self._server.close()
            await self._end(reset=True)

        self._do(shut)

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
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=CHUNK)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._end(reset=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end(self, *, reset: bool) -> None:
        self._ends += 1
        for link in list(self._links):
            for writer in link:
                if reset:
                    # With SO_LINGER of zero seconds the kernel sends RST instead of FIN.
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                else:
                    writer.close()
        self._links.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            await self._connect(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = self._ends
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=CHUNK)
        except OSError:
            writer.close()
            return
        if self._ends != ends or self._server is None or not self._server.is_serving():
            # All connections were ended while this one was made.
            writer.transport.abort()
            far_writer.transport.abort()
            return
        link = (writer, far_writer)
        self._links.add(link)
        ways = {
            asyncio.ensure_future(self._pump(reader, far_writer, False)),
            asyncio.ensure_future(self._pump(far_reader, writer, True)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            for end in link:
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_target: bool) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = await reader.read(CHUNK)
                if not data:
                    return
                while from_target and self._trouble is Trouble.STALL:
                    await self._changed.wait()
                await self._pass_on(data, writer)

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            match self._trouble:
                case Trouble.SWALLOW:
                    self.swallowed += len(data)
                    return
                case Trouble.SLOW:
                    piece, data = data[:SLOW_BYTES], data[SLOW_BYTES:]
                    await asyncio.sleep(SLOW_PAUSE)
                case Trouble.DRIP:
                    piece, data = data[:1], data[1:]
                    # One pass of the loop, so that each byte is sent alone.
                    await asyncio.sleep(0)
                case _:
                    piece, data = data, b""
            writer.write(piece)
            await writer.drain()
