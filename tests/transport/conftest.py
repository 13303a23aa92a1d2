"""A listener whose accepted streams the test takes by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import SECONDS
from wallaroo_spark.transport import ByteStream, Listener, connect, serve


class Accepting:
    """A handler that hands each stream to the test, and keeps it until the test releases it."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[ByteStream] = asyncio.Queue()
        self.release = asyncio.Event()

    async def __call__(self, stream: ByteStream) -> None:
        self.streams.put_nowait(stream)
        await self.release.wait()


@asynccontextmanager
async def serving(
    handler: Callable[[ByteStream], Awaitable[None]], host: str = "127.0.0.1", **options: Any
) -> AsyncIterator[Listener]:
    listener = await serve(handler, host, 0, **options)
    try:
        yield listener
    finally:
        if isinstance(handler, Accepting):
            handler.release.set()
        await listener.close()


@asynccontextmanager
async def connected(tls_server: Any = None, tls_client: Any = None) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """The two ends of one TCP connection: the connecting one and the accepted one."""
    accepting = Accepting()
    async with serving(accepting, tls=tls_server) as listener:
        ours = await connect("127.0.0.1", listener.address[1], tls=tls_client, timeout=SECONDS)
        theirs = await accepting.streams.get()
        try:
            yield ours, theirs
        finally:
            ours.abort()
            theirs.abort()


async def read_exactly(stream: ByteStream, count: int) -> bytes:
    taken = bytearray()
    while len(taken) < count:
        chunk = await stream.read(count - len(taken))
        assert chunk, f"the stream ended after {len(taken)} of {count} bytes"
        taken += chunk
    return bytes(taken)


async def read_all(stream: ByteStream) -> bytes:
    taken = bytearray()
    while chunk := await stream.read():
        taken += chunk
    return bytes(taken)
