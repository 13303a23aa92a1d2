"""The QUIC link: streams, resets, datagrams, early data, a changed address, and what a peer must not do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.pems import Pems
from tests.waiting import SECONDS
from wallaroo_spark.aqueduct.shell import quic
from wallaroo_spark.aqueduct.shell.quic import DATAGRAM_BYTES, CopyingTransport, LinkEnd, QuicLink, dial, listen


class Seen:
    """Takes a link's events, and lets a test wait for them."""

    def __init__(self, link: QuicLink) -> None:
        self.link = link
        self.events: list[tuple[Any, ...]] = []
        self._changed = asyncio.Event()

    async def until(self, *wanted: Any) -> tuple[Any, ...]:
        """Wait for an event that begins with these values."""
        async with asyncio.timeout(SECONDS):
            while not (found := [event for event in self.events if event[: len(wanted)] == wanted]):
                self._changed.clear()
                await self._changed.wait()
        return found[0]

    def _add(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    def ready(self, datagram_bytes: int) -> None:
        self._add("ready", datagram_bytes)

    def stream_received(self, stream: int, data: bytes, ended: bool) -> None:
        self._add("stream", stream, data, ended)

    def stream_reset(self, stream: int, code: int) -> None:
        self._add("reset", stream, code)

    def stream_stopped(self, stream: int, code: int) -> None:
        self._add("stopped", stream, code)

    def datagram_received(self, data: bytes) -> None:
        self._add("datagram", data)

    def link_ended(self, end: LinkEnd) -> None:
        self._add("ended", end)


class Links:
    """A listening server, and the clients of it that a test makes."""

    def __init__(self, pems: Pems) -> None:
        self.pems = pems
        self.accepted: list[Seen] = []
        self.arrived = asyncio.Event()
        self.opening = 0
        self.clients: list[Seen] = []
        self.address: tuple[str, int] = ("", 0)

    def accept(self, link: QuicLink) -> Seen:
        self.accepted.append(Seen(link))
        self.arrived.set()
        return self.accepted[-1]

    async def dial(self, *, early: bool = False, idle: float = 30.0) -> Seen:
        def events(link: QuicLink) -> Seen:
            self.clients.append(Seen(link))
            return self.clients[-1]

        await dial(
            self.address, socket.AF_INET, events, server_name="localhost", ca=self.pems.ca, idle=idle, early=early
        )
        return self.clients[-1]

    async def pair(self, *, early: bool = False) -> tuple[Seen, Seen]:
        """A client and its server's side, both ready."""
        self.arrived.clear()
        client = await self.dial(early=early)
        await self.arrived.wait()
        server = self.accepted[-1]
        await client.until("ready")
        await server.until("ready")
        return client, server


@pytest.fixture
async def links(pems: Pems) -> AsyncIterator[Links]:
    async with _listening(pems) as links:
        yield links


@asynccontextmanager
async def _listening(pems: Pems) -> AsyncIterator[Links]:
    links = Links(pems)
    listener = await listen(
        "127.0.0.1", 0, links.accept, lambda: links.opening, certificate=pems.server, key=pems.server_key, idle=30
    )
    links.address = listener.address
    try:
        yield links
    finally:
        for client in links.clients:
            client.link.end(0, "the test is over")
            client.link.discard()
        listener.close()


async def test_streams_and_datagrams_go_both_ways(links: Links) -> None:
    client, server = await links.pair()

    client.link.send(0, b"hello", False)
    client.link.send(2, b"one way", True)
    await server.until("stream", 0, b"hello", False)
    await server.until("stream", 2, b"one way", True)
    client.link.send_datagram(b"d" * DATAGRAM_BYTES)
    await server.until("datagram", b"d" * DATAGRAM_BYTES)
    server.link.send(0, b"answer", True)
    server.link.send_datagram(b"back")
    await client.until("stream", 0, b"answer", True)
    await client.until("datagram", b"back")


async def test_a_reset_is_told_with_its_code_also_of_a_stream_that_carried_nothing(links: Links) -> None:
    client, server = await links.pair()

    client.link.reset(2, 2)
    client.link.send(6, b"x", False)
    await server.until("reset", 2, 2)
    await server.until("stream", 6)
    client.link.reset(6, 1)
    await server.until("reset", 6, 1)


async def test_the_largest_datagram_fits_also_into_the_packets_with_the_longest_header(links: Links) -> None:
    """One that is too large is never sent, and stops all behind it."""
    await _remembered(links)

    client = await links.dial(early=True)
    for number in range(3):
        client.link.send_datagram(bytes([number]) * DATAGRAM_BYTES)
    client.link.send_datagram(b"small")
    await client.until("ready")
    await asyncio.wait_for(links.arrived.wait(), SECONDS)
    await links.accepted[-1].until("datagram", b"small")

    assert client.link.early


async def test_early_data_waits_at_the_server_for_the_end_of_the_handshake(links: Links) -> None:
    await _remembered(links)

    client = await links.dial(early=True)
    client.link.send(0, b"early", False)
    await asyncio.wait_for(links.arrived.wait(), SECONDS)
    server = links.accepted[-1]
    await server.until("stream", 0, b"early", False)

    assert client.link.early
    assert [event[0] for event in server.events][:2] == ["ready", "stream"]


async def test_a_server_holds_no_more_early_data_than_its_limit(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "HELD_EVENTS", 3)
    await _remembered(links)

    client = await links.dial(early=True)
    for _ in range(5):
        client.link.send_datagram(b"early")
    await asyncio.wait_for(links.arrived.wait(), SECONDS)
    ended = (await links.accepted[-1].until("ended"))[1]

    assert ended.code == quic.APPLICATION_LIMITS


async def test_early_data_that_a_server_refuses_is_sent_again(links: Links, pems: Pems) -> None:
    await _remembered(links)
    # Another server, which does not know the ticket.
    async with _listening(pems) as other:
        place = ((links.address, "localhost", pems.ca), (other.address, "localhost", pems.ca))
        ticket = quic._client_tickets.take(place[0])
        assert ticket is not None
        quic._client_tickets.put(place[1], ticket)
        client = await other.dial(early=True)
        client.link.send(0, b"early", False)
        assert client.link.early
        await asyncio.wait_for(other.arrived.wait(), SECONDS)
        await other.accepted[-1].until("stream", 0, b"early", False)


async def _remembered(links: Links) -> None:
    """A first connection, of which the client keeps a ticket."""
    client, server = await links.pair(early=True)
    client.link.send(0, b"x", False)
    await server.until("stream", 0)
    server.link.send(0, b"y", False)
    # The ticket comes before what is sent later.
    await client.until("stream", 0)
    client.link.end(0, "done")
    links.arrived.clear()


async def test_a_connection_goes_on_from_another_port(links: Links) -> None:
    client, server = await links.pair()
    before = server.link.peer

    await client.link.rebind()
    client.link.send(0, b"here I am", False)
    await server.until("stream", 0, b"here I am", False)
    server.link.send(0, b"seen", False)
    await client.until("stream", 0, b"seen", False)

    assert server.link.peer != before


class _Socket:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.again = asyncio.Event()
        self.closing = False

    def sendto(self, data: bytes, _: object) -> None:
        if data in self.sent:
            self.again.set()
        self.sent.append(data)

    def is_closing(self) -> bool:
        return self.closing


async def test_a_small_packet_is_sent_twice_and_a_burst_has_one_copy() -> None:
    socket = _Socket()
    copying = CopyingTransport(socket, asyncio.get_running_loop())  # type: ignore[arg-type]  # the two methods suffice
    small, sizes = bytes(quic.COPIED_BYTES[-1]), (quic.COPIED_BYTES[0] - 1, quic.COPIED_BYTES[-1] + 1)

    for size in sizes:
        copying.sendto(bytes(size))
    copying.sendto(small)
    for number in range(3):
        copying.sendto(bytes([number + 1]) * 100)
    await asyncio.wait_for(socket.again.wait(), SECONDS)
    copying.sendto(b"a" * 100)

    assert [len(one) for one in socket.sent] == [*sizes, len(small), 100, 100, 100, len(small), 100]

    socket.again.clear()
    await asyncio.wait_for(socket.again.wait(), SECONDS)
    assert socket.sent[-1] == b"a" * 100


async def test_no_copy_is_sent_on_a_closed_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "COPY_SECONDS", 0)
    socket = _Socket()
    copying = CopyingTransport(socket, asyncio.get_running_loop())  # type: ignore[arg-type]  # the two methods suffice

    copying.sendto(bytes(100))
    socket.closing = True
    await asyncio.sleep(0.001)

    assert socket.sent == [bytes(100)]


async def test_an_end_is_told_with_its_code_and_its_reason(links: Links) -> None:
    client, server = await links.pair()

    client.link.end(3, "too much")
    ended = (await server.until("ended"))[1]

    assert ended == LinkEnd(3, "too much", by_program=True, here=False)
    assert (await client.until("ended"))[1].here


async def test_what_was_sent_just_before_the_end_arrives(links: Links) -> None:
    client, server = await links.pair()

    client.link.send(0, b"last words", True)
    client.link.end(0, "done")

    await server.until("stream", 0, b"last words", True)


async def test_sending_on_a_stream_that_the_peer_has_stopped_is_no_error(links: Links) -> None:
    client, server = await links.pair()
    client.link.send(0, b"x", False)
    await server.until("stream", 0)

    server.link._quic.stop_stream(0, 7)
    server.link.transmit()
    await client.until("stopped", 0, 7)
    client.link.send(0, b"too late", True)
    client.link.reset(0, 1)
    server.link.send(0, b"goes on", False)

    await client.until("stream", 0, b"goes on")


async def test_a_peer_with_much_behind_gaps_is_closed(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a few packets take all memory: aioquic lets a peer send twice as far as it has begun to send."""
    monkeypatch.setattr(quic, "UNDELIVERED_BYTES", 100_000)
    client, server = await links.pair()
    client.link.send(0, b"x" * 1000, False)
    await server.until("stream", 0)

    # A stream that jumps over what it never sends.
    sender = client.link._quic._streams[0].sender
    sender.write(bytes(300_000))
    sender._pending.subtract(1000, 280_000)
    client.link.transmit()
    ended = (await server.until("ended"))[1]

    assert ended.code == quic.APPLICATION_LIMITS
    assert "bytes wait behind gaps; at most 100000 may" in ended.reason


async def test_streams_that_were_reset_do_not_count_as_gaps(links: Links, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "UNDELIVERED_BYTES", 100_000)
    client, server = await links.pair()

    for number in range(20):
        client.link.send(4 * number + 2, bytes(20_000), False)
        client.link._quic._streams[4 * number + 2].sender.highest_offset = 20_000
        client.link.reset(4 * number + 2, 1)
        await server.until("reset", 4 * number + 2)
    client.link.send(0, b"still here", False)

    await server.until("stream", 0, b"still here")


async def test_a_client_proves_its_address_while_many_handshakes_are_open(links: Links) -> None:
    links.opening = quic.HALF_OPEN

    client, _ = await links.pair()

    assert client.link._quic._retry_count == 1


async def test_a_peer_without_datagrams_is_told_as_zero(pems: Pems, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "ANY_DATAGRAM", None)
    async with _listening(pems) as links:
        client, server = await links.pair()

        assert (await client.until("ready"))[1] == (await server.until("ready"))[1] == 0


def test_tickets_are_used_once_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic, "TICKETS", 2)
    store, ticket = quic.TicketStore(), object()
    for key in "abc":
        store.put(key, ticket)  # type: ignore[arg-type]  # any object is kept alike

    assert [store.take(key) for key in "abcc"] == [None, ticket, ticket, None]
