"""A linked pair of streams without a socket, as the test double of a connection: each reads the other's writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport.base import HIGH_WATER, READ_AT_MOST, ByteStream, closed_here, cut


def pair(high_water: int = HIGH_WATER) -> tuple[ByteStream, ByteStream]:
    """Two linked streams. ``drain`` waits while the other side has ``high_water`` bytes unread."""
    there, back = _Pipe(high_water), _Pipe(high_water)
    return _MemoryStream(there, back), _MemoryStream(back, there)


class _Pipe:
    """One direction: the written bytes that are not read yet, and its end."""

    def __init__(self, high_water: int) -> None:
        self.data = bytearray()
        self.ended = False
        self.failure: TransportError | None = None
        self.high_water = high_water
        self.readable = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def put(self, data: bytes) -> None:
        if self.ended or self.failure:
            return
        self.data += data
        self.settle()

    def take(self, most: int) -> bytes:
        taken = bytes(self.data[:most])
        del self.data[:most]
        self.settle()
        return taken

    def end(self) -> None:
        self.ended = True
        self.settle()

    def fail(self, failure: TransportError) -> None:
        self.failure = self.failure or failure
        self.data.clear()
        self.settle()

    def settle(self) -> None:
        """Wake the tasks that wait for a change."""
        over = self.ended or self.failure is not None
        _set_or_clear(self.readable, over or bool(self.data))
        _set_or_clear(self.writable, over or len(self.data) < self.high_water)


class _MemoryStream:
    peer = "memory"
    certificate_names: tuple[str, ...] = ()

    def __init__(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False
        self._delivering = asyncio.Event()
        self._delivering.set()

    @property
    def queued(self) -> int:
        return len(self._outgoing.data)

    async def read(self, most: int = READ_AT_MOST) -> bytes:
        await self._incoming.readable.wait()
        if self._closed:
            return b""
        if self._incoming.failure:
            raise self._incoming.failure
        return self._incoming.take(most)

    async def deliver(self, received: Callable[[bytes], None]) -> None:
        while data := await self.read():
            await self._delivering.wait()
            received(data)

    def set_delivering(self, on: bool) -> None:
        _set_or_clear(self._delivering, on)

    def write(self, data: bytes) -> None:
        self._outgoing.put(data)

    async def drain(self) -> None:
        await self._outgoing.writable.wait()
        if self._closed:
            raise closed_here(self.peer)
        if self._outgoing.failure:
            raise self._outgoing.failure

    async def close(self) -> None:
        aborted = self._incoming.failure is not None
        if self._closed or aborted:
            return
        self._closed = True
        self._outgoing.end()
        # No task reads the peer's later bytes; its drain raises, as after a socket's reset.
        self._incoming.fail(cut(self.peer, "the other side has closed"))

    def abort(self) -> None:
        failure = cut(self.peer, "aborted")
        self._outgoing.fail(failure)
        self._incoming.fail(failure)


def _set_or_clear(event: asyncio.Event, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()
