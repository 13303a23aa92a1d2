"""Listening on a port that somebody else still holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError, TransportError
from wallaroo_spark.transport import ByteStream, Listener, connect, serve, serve_once_free, tcp


async def echo(stream: ByteStream) -> None:
    while data := await stream.read():
        stream.write(data)
        await stream.drain()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a port was found in use."""
    found = asyncio.Event()

    async def noticing(*arguments: Any, **settings: Any) -> Listener:
        try:
            return await serve(*arguments, **settings)
        except TransportError:
            found.set()
            raise

    monkeypatch.setattr(tcp, "serve", noticing)
    return found


async def test_a_port_is_waited_for_until_its_holder_lets_it_go(refused: asyncio.Event) -> None:
    holder = await serve(echo, "127.0.0.1", 0)
    port = holder.address[1]
    waiting = asyncio.create_task(serve_once_free(echo, "127.0.0.1", port, stopped=asyncio.Event()))
    await refused.wait()
    assert not waiting.done()
    await holder.close()
    listener = await waiting
    assert listener is not None
    assert listener.address == ("127.0.0.1", port)
    stream = await connect("127.0.0.1", port, timeout=SECONDS)
    stream.write(b"hello")
    assert await stream.read() == b"hello"
    await stream.close()
    await listener.close()


async def test_a_wait_ends_when_a_stop_is_requested(refused: asyncio.Event) -> None:
    holder = await serve(echo, "127.0.0.1", 0)
    stopped = asyncio.Event()
    waiting = asyncio.create_task(serve_once_free(echo, "127.0.0.1", holder.address[1], stopped=stopped))
    await refused.wait()
    stopped.set()
    assert await waiting is None
    await holder.close()


async def test_a_lasting_error_is_raised_at_once() -> None:
    with pytest.raises(ConfigurationError, match="65536"):
        await serve_once_free(echo, "127.0.0.1", 65536, stopped=asyncio.Event())


async def test_a_port_that_a_stranger_keeps_is_said_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "FREE_SECONDS", 0.1)
    holder = await serve(echo, "127.0.0.1", 0)
    with pytest.raises(ConfigurationError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use; free"):
        await serve_once_free(echo, "127.0.0.1", holder.address[1], stopped=asyncio.Event())
    await holder.close()
