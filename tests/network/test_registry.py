"""The network between worker and Redis fails: connected sessions continue, and the lease returns with Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.network.query import Query
from tests.network.test_connectors import MESSAGES, RETRY, lines, send
from tests.waiting import eventually
from tests.worker.running import COOKIE, Fleet, Running
from wallaroo_spark.connector import Connector
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.testing import Proxy, Trouble

Break = Callable[[Proxy], None]
TROUBLES: dict[str, Break] = {
    "refuses": lambda proxy: proxy.refuse(),
    "swallows": lambda proxy: proxy.become(Trouble.SWALLOW),
    "stalls": lambda proxy: proxy.become(Trouble.STALL),
}


def connect(worker: Running, instance: str = "shop-1") -> Connector:
    return Connector("orders", instance=instance, workers=worker.lease.connect, cookie=COOKIE, retry=RETRY)


def mend(proxy: Proxy, trouble: str) -> None:
    proxy.reset()
    proxy.become(Trouble.NONE)
    if trouble == "refuses":
        proxy.accept()


@pytest.mark.parametrize("workers", [{"lease_seconds": 1.5}], ids=["short lease"], indirect=True)
@pytest.mark.parametrize("trouble", TROUBLES)
async def test_connected_sessions_continue_without_redis_and_new_ones_wait_for_it(
    worker: Running, workers: Fleet, redis_proxy: Proxy, query: Query, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = lines()
    async with connect(worker) as connector:
        stream = await connector.open("orders")
        await send(stream, sent[:1000])
        TROUBLES[trouble](redis_proxy)
        # Longer than the lease: Redis has forgotten the worker by then.
        await asyncio.to_thread(eventually, lambda: not workers.registry.leases())
        await send(stream, sent[1000:], first=1001)
        await connector.drain()
        async with connect(worker, "shop-2") as late:
            opening = asyncio.create_task(late.open("late"))
            await asyncio.to_thread(eventually, lambda: "the registry does not answer" in caplog.text)
            assert not opening.done()
            mend(redis_proxy, trouble)
            await send(await opening, sent[:100])
            await late.drain()
    lease = await asyncio.to_thread(eventually, lambda: workers.registry.leases().get(0))
    assert lease.connect == worker.lease.connect
    assert sorted(query.payloads(), key=len) == [sent[:100], sent]


@pytest.mark.parametrize("trouble", [Trouble.SLOW, Trouble.DRIP])
async def test_a_redis_that_is_hard_to_reach_is_reached(
    worker: Running, workers: Fleet, redis_proxy: Proxy, query: Query, trouble: Trouble
) -> None:
    redis_proxy.become(trouble)
    sent = lines()
    async with connect(worker) as connector:
        await send(await connector.open("orders"), sent)
        await connector.drain()
    assert query.payloads() == [sent]
    assert workers.registry.leases()[0] == worker.lease


async def test_connections_to_redis_that_are_cut_cost_nothing(
    worker: Running, workers: Fleet, redis_proxy: Proxy, query: Query
) -> None:
    sent = lines()
    async with connect(worker) as connector:
        for number, part in enumerate(range(0, MESSAGES, 500)):
            redis_proxy.cut() if number % 2 else redis_proxy.reset()
            await send(await connector.open(f"orders-{number}"), sent[part : part + 500])
        await connector.drain()
    assert sorted(query.payloads()) == sorted(sent[part : part + 500] for part in range(0, MESSAGES, 500))
    assert workers.registry.leases()[0] == worker.lease


async def test_a_worker_that_lost_its_slot_behind_a_broken_network_ends_when_it_comes_back(
    worker: Running, workers: Fleet, redis_server: EmbeddedRedis, redis_proxy: Proxy
) -> None:
    redis_proxy.become(Trouble.SWALLOW)
    workers.url = redis_server.url
    newer = workers.start(submission=2)
    assert newer.lease.generation > worker.lease.generation
    redis_proxy.reset()
    redis_proxy.become(Trouble.NONE)
    await asyncio.to_thread(worker.ended)
    assert workers.registry.leases()[0] == newer.lease
