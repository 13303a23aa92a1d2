"""The network between connector and worker fails in every manner; every message is committed once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.network.query import Query
from tests.waiting import SECONDS, eventually
from tests.worker.running import COOKIE, Running
from wallaroo_spark.connector import Backoff, Connector, Stream
from wallaroo_spark.testing import Proxy, Trouble

REVISIONS = ("draft-be", "draft-le", "v3")
MESSAGES = 3000
RETRY = Backoff(initial=0.02, maximum=0.2, give_up_after=SECONDS)


def lines(count: int = MESSAGES, size: int = 40) -> list[bytes]:
    return [f"line {number} ".encode().ljust(size, b".") for number in range(1, count + 1)]


def connect(
    proxy: Proxy, revision: str = "draft-be", instance: str = "shop-1", handshake_timeout: float = SECONDS
) -> Connector:
    return Connector(
        "orders",
        instance=instance,
        workers=proxy.address,
        cookie=COOKIE,
        revision=revision,
        retry=RETRY,
        connect_timeout=SECONDS,
        handshake_timeout=handshake_timeout,
    )


async def send(stream: Stream, payloads: list[bytes], first: int = 1) -> None:
    for number, payload in enumerate(payloads, start=first):
        await stream.send(payload, id=number)


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("end", [Proxy.cut, Proxy.reset], ids=["cut", "reset"])
async def test_a_session_that_is_ended_again_and_again_loses_and_repeats_nothing(
    proxy: Proxy, query: Query, revision: str, end: Callable[[Proxy], None]
) -> None:
    sent = lines()
    async with connect(proxy, revision) as connector:
        stream = await connector.open("orders")
        for part in range(0, MESSAGES, 500):
            await send(stream, sent[part : part + 500], first=part + 1)
            end(proxy)
        await connector.drain()
    assert query.payloads() == [sent]
    assert proxy.connections > 2


@pytest.mark.parametrize("revision", REVISIONS)
async def test_frames_that_come_one_byte_at_a_time_are_frames(proxy: Proxy, query: Query, revision: str) -> None:
    proxy.become(Trouble.DRIP)
    sent = lines(100)
    async with connect(proxy, revision) as connector:
        await send(await connector.open("orders"), sent)
        await connector.drain()
    assert query.payloads() == [sent]
    assert proxy.connections == 1


async def test_a_slow_network_is_slow_and_nothing_else(proxy: Proxy, query: Query) -> None:
    proxy.become(Trouble.SLOW)
    sent = lines()
    async with connect(proxy) as connector:
        await send(await connector.open("orders"), sent)
        await connector.drain()
    assert query.payloads() == [sent]
    assert proxy.connections == 1


@pytest.mark.parametrize("revision", REVISIONS)
async def test_messages_lost_in_a_half_open_connection_are_sent_again(
    proxy: Proxy, query: Query, revision: str
) -> None:
    sent = lines()
    async with connect(proxy, revision) as connector:
        stream = await connector.open("orders")
        await send(stream, sent[:1000])
        await connector.drain()
        proxy.become(Trouble.SWALLOW)
        await send(stream, sent[1000:], first=1001)
        await asyncio.to_thread(eventually, lambda: proxy.swallowed > 0)
        assert stream.unacknowledged == MESSAGES - 1000
        # In this order: a connection that lost bytes in its middle and goes on is nothing that TCP does.
        proxy.reset()
        proxy.become(Trouble.NONE)
        await connector.drain()
    assert query.payloads() == [sent]


async def test_a_worker_that_never_answers_hello_is_tried_again(proxy: Proxy, query: Query) -> None:
    proxy.become(Trouble.SWALLOW)
    sent = lines(100)
    async with connect(proxy, handshake_timeout=0.5) as connector:
        opening = asyncio.create_task(connector.open("orders"))
        await asyncio.to_thread(eventually, lambda: proxy.connections > 1)
        proxy.become(Trouble.NONE)
        await send(await opening, sent)
        await connector.drain()
    assert query.payloads() == [sent]


async def test_a_connector_that_does_not_read_harms_no_other(proxy: Proxy, worker: Running, query: Query) -> None:
    sent = lines()
    with Proxy(worker.address) as stalled:
        async with connect(stalled, instance="shop-2") as deaf, connect(proxy) as connector:
            theirs = await deaf.open("deaf")
            stalled.become(Trouble.STALL)
            await send(theirs, sent[:500])
            await send(await connector.open("orders"), sent)
            await connector.drain()
            await query.has(MESSAGES + 500)
            assert theirs.unacknowledged == 500
            stalled.become(Trouble.NONE)
            await deaf.drain()
    assert sorted(query.payloads(), key=len) == [sent[:500], sent]


async def test_a_connector_waits_out_a_network_that_refuses(proxy: Proxy, query: Query) -> None:
    sent = lines()
    async with connect(proxy) as connector:
        stream = await connector.open("orders")
        await send(stream, sent[:1500])
        proxy.refuse()
        waiting = asyncio.create_task(send(stream, sent[1500:], first=1501))
        await asyncio.to_thread(eventually, lambda: connector.waiting_for == "connection")
        proxy.accept()
        await waiting
        await connector.drain()
    assert query.payloads() == [sent]


async def test_a_session_left_half_open_gives_way_to_the_same_instance_coming_back(
    proxy: Proxy, worker: Running, query: Query
) -> None:
    sent = lines()
    async with connect(proxy) as lost:
        stream = await lost.open("orders")
        await send(stream, sent[:1000])
        await lost.drain()
        proxy.become(Trouble.SWALLOW)
        # Its program is started anew on another way, and the worker has not heard of the old session's end.
        with Proxy(worker.address) as other:
            async with connect(other) as back:
                again = await back.open("orders")
                assert again.reference == 1000
                await send(again, sent[1000:], first=1001)
                await back.drain()
    assert query.payloads() == [sent]
