"""The promises of every stream, over TCP and over TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.pems import Pems
from tests.waiting import SECONDS
from wallaroo_spark.errors import TransportError
from wallaroo_spark.transport import ByteStream, client_context, server_context, tcp
from wallaroo_spark.transport.base import HIGH_WATER

from .conftest import connected, read_all, read_exactly

Ends = tuple[ByteStream, ByteStream]
MEGABYTE = 1 << 20


@pytest.fixture(params=["tcp", "tls"])
async def ends(request: pytest.FixtureRequest, pems: Pems) -> AsyncIterator[Ends]:
    tls = request.param == "tls"
    server = server_context(pems.server, pems.server_key) if tls else None
    client = client_context(pems.ca) if tls else None
    async with connected(server, client) as both:
        yield both


async def test_bytes_arrive_in_order_both_ways(ends: Ends) -> None:
    ours, theirs = ends
    ours.write(b"hello ")
    ours.write(b"worker")
    theirs.write(b"hello connector")
    assert await read_exactly(theirs, 12) == b"hello worker"
    assert await read_exactly(ours, 15) == b"hello connector"


async def test_a_read_returns_no_more_than_it_was_asked_for(ends: Ends) -> None:
    ours, theirs = ends
    ours.write(b"abcdef")
    pieces = [await theirs.read(2) for _ in range(3)]
    assert b"".join(pieces) == b"abcdef"
    assert all(len(piece) <= 2 for piece in pieces)


async def test_the_peers_close_ends_the_stream_after_all_its_bytes(ends: Ends) -> None:
    ours, theirs = ends
    ours.write(b"x" * MEGABYTE)
    closing = asyncio.create_task(ours.close())
    assert await read_all(theirs) == b"x" * MEGABYTE
    assert await theirs.read() == b""
    await theirs.close()
    await closing


async def test_closing_twice_and_at_once_is_harmless(ends: Ends) -> None:
    ours, theirs = ends
    await asyncio.gather(ours.close(), ours.close(), theirs.close())
    await ours.close()
    assert await ours.read() == b""
    assert ours.queued == 0


async def test_after_closing_a_drain_says_so_and_writes_are_dropped(ends: Ends) -> None:
    ours, theirs = ends
    await asyncio.gather(ours.close(), theirs.close())
    ours.write(b"too late")
    with pytest.raises(TransportError, match="closed by this side"):
        await ours.drain()
    assert ours.queued == 0


async def test_an_abort_is_a_cut_to_both_sides(ends: Ends) -> None:
    ours, theirs = ends
    ours.write(b"something")
    ours.abort()
    with pytest.raises(TransportError, match="cut"):
        await ours.read()
    with pytest.raises(TransportError, match="cut"):
        await read_all(theirs)
    with pytest.raises(TransportError):
        await theirs.drain()
    await ours.close()
    await theirs.close()


async def test_a_waiting_reader_is_woken_by_the_cut(ends: Ends) -> None:
    ours, theirs = ends
    reading = asyncio.create_task(theirs.read())
    await asyncio.sleep(0)
    ours.abort()
    with pytest.raises(TransportError):
        await reading


async def test_drain_waits_until_the_peer_has_read(ends: Ends) -> None:
    ours, theirs = ends
    written = 0
    while ours.queued < HIGH_WATER:
        ours.write(b"y" * MEGABYTE)
        written += MEGABYTE
    draining = asyncio.create_task(ours.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    assert await read_exactly(theirs, written) == b"y" * written
    await draining
    assert ours.queued < HIGH_WATER


async def test_a_waiting_drain_is_woken_by_the_cut(ends: Ends) -> None:
    ours, theirs = ends
    while ours.queued < HIGH_WATER:
        ours.write(b"z" * MEGABYTE)
    draining = asyncio.create_task(ours.drain())
    await asyncio.sleep(0)
    theirs.abort()
    with pytest.raises(TransportError):
        await draining


async def test_a_cancelled_read_loses_nothing(ends: Ends) -> None:
    ours, theirs = ends
    reading = asyncio.create_task(theirs.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    ours.write(b"still here")
    assert await read_exactly(theirs, 10) == b"still here"


class Delivered:
    """Takes the delivered bytes."""

    def __init__(self, stream: ByteStream, enough: int = 0) -> None:
        self.data = bytearray()
        self.enough = asyncio.Event()
        self._wanted = enough
        self.task = asyncio.create_task(stream.deliver(self))

    def __call__(self, data: bytes) -> None:
        self.data += data
        if len(self.data) >= self._wanted:
            self.enough.set()


class TestDelivery:
    async def test_bytes_are_delivered_in_order_until_the_peer_closes(self, ends: Ends) -> None:
        ours, theirs = ends
        ours.write(b"before ")
        delivered = Delivered(theirs)
        ours.write(b"x" * MEGABYTE)
        closing = asyncio.create_task(ours.close())
        await asyncio.wait_for(delivered.task, SECONDS)
        assert bytes(delivered.data) == b"before " + b"x" * MEGABYTE
        await theirs.close()
        await closing

    async def test_a_suspended_delivery_holds_back_the_bytes_and_the_end(self, ends: Ends) -> None:
        ours, theirs = ends
        delivered = Delivered(theirs, 6)
        ours.write(b"before")
        await asyncio.wait_for(delivered.enough.wait(), SECONDS)
        theirs.set_delivering(False)
        ours.write(b" and after" * 100_000)
        theirs.write(b"go on")
        assert await read_exactly(ours, 5) == b"go on"
        closing = asyncio.create_task(ours.close())
        assert bytes(delivered.data) == b"before"
        assert not delivered.task.done()
        theirs.set_delivering(True)
        await asyncio.wait_for(delivered.task, SECONDS)
        assert bytes(delivered.data) == b"before" + b" and after" * 100_000
        await theirs.close()
        await closing

    async def test_a_cut_is_raised(self, ends: Ends) -> None:
        ours, theirs = ends
        delivered = Delivered(theirs, 6)
        ours.write(b"before")
        await asyncio.wait_for(delivered.enough.wait(), SECONDS)
        ours.abort()
        with pytest.raises(TransportError):
            await asyncio.wait_for(delivered.task, SECONDS)
        assert bytes(delivered.data) == b"before"

    async def test_our_own_close_ends_the_delivery(self, ends: Ends) -> None:
        ours, theirs = ends
        delivered = Delivered(theirs)
        await asyncio.gather(theirs.close(), ours.close())
        await asyncio.wait_for(delivered.task, SECONDS)

    async def test_an_error_of_the_receiver_ends_the_delivery_and_is_raised(self, ends: Ends) -> None:
        ours, theirs = ends
        calls: list[bytes] = []

        def broken(data: bytes) -> None:
            calls.append(data)
            raise ValueError("no more")

        delivery = asyncio.create_task(theirs.deliver(broken))
        ours.write(b"one")
        with pytest.raises(ValueError, match="no more"):
            await asyncio.wait_for(delivery, SECONDS)
        assert calls == [b"one"]


async def test_an_idle_delivery_makes_no_objects_for_waiting(pems: Pems) -> None:
    async with connected() as (ours, theirs):
        delivered = Delivered(theirs, 3)
        ours.write(b"one")
        await asyncio.wait_for(delivered.enough.wait(), SECONDS)
        # One event with its queue takes 800 bytes, and a worker may have ten thousand such streams.
        assert theirs._changed is None
        assert theirs._chunks is tcp._NO_CHUNKS
        delivered.task.cancel()
