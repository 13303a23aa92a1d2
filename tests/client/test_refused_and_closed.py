"""Requests that a living gateway refuses, and connections that are closed under requests, members and servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.client.fake_gateway import FakeGateway
from tests.client.test_client import SOON, client_of
from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import SHOP
from tests.waiting import until
from wallaroo_spark.client import AsyncClient, Client, Event, EventPlace, ServedCall, StageWork, stage
from wallaroo_spark.errors import LocalProtocolError, PipelineError
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey


@pytest.fixture
def application() -> Iterator[MemoryApplication]:
    made = MemoryApplication(SHOP)
    yield made
    made.close()


@pytest.fixture
async def busy(application: MemoryApplication) -> AsyncIterator[ServedGateway]:
    """A gateway that takes two calls at once."""
    async with serving(application, limits=GatewayLimits(requests=2)) as served:
        yield served


def refusals(served: ServedGateway) -> float:
    """How often the gateway has refused a publish as busy."""
    return served.gateway.figures.counts["calls:Publish:gateway-busy"]


def quote(call: ServedCall) -> Any:
    """An answer."""
    return call.event.value


async def test_what_is_refused_as_busy_is_done_later_and_nothing_else_of_the_connection_suffers(
    application: MemoryApplication, busy: ServedGateway
) -> None:
    worked: list[int] = []

    @stage("shop/fulfil", "charge", concurrency=10)
    def charge(work: StageWork) -> str:
        worked.append(work.instance)
        return "charged"

    async with AsyncClient(busy.address, retry=SOON) as client:
        background = [
            asyncio.create_task(client.work(charge)),
            asyncio.create_task(client.serve("shop/quote", quote, concurrency=2)),
        ]
        deliveries = client.consume("shop/orders", group="readers", start="beginning", max_events=50)
        deliveries.start()
        await deliveries.joined.wait()
        await until(lambda: busy.gateway.endpoints.consumers and len(busy.gateway.core.members) == 2)
        members = {member.name for member in busy.gateway.core.members.values()}
        published: list[list[EventPlace]] = []

        async def publish(number: int) -> None:
            event = Event("order.created", number, id=f"o{number}", source="/test")
            published.append(await client.publish("shop/orders", event, partition=0))

        application.hold()
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(publish(number))
            await until(lambda: refusals(busy) > 40)
            assert (await client.call("shop/quote", Event("q", 7))).value == 7
            assert len(application.records[PartitionKey("shop/orders", 0)]) == 0
            application.release()

        seen: list[Any] = []
        while len(seen) < 20:
            async with await anext(deliveries) as delivery:
                seen += [event.value for event in delivery.events]
        await until(lambda: len(set(worked)) == 20)
        assert (await client.call("shop/quote", Event("q", 8))).value == 8
        # Nobody had to join again, because the connection was never lost.
        assert {member.name for member in busy.gateway.core.members.values()} == members

    await asyncio.gather(*background)
    assert sorted(place.offset for places in published for place in places) == [*range(1, 21)]
    assert sorted(seen) == [*range(20)]


async def test_a_busy_gateway_is_left_for_another_one_and_its_requests_in_flight_are_answered(
    application: MemoryApplication, busy: ServedGateway
) -> None:
    async with (
        serving(application, "g1") as other,
        AsyncClient([busy.address, other.address], retry=SOON) as client,
    ):
        application.hold()
        await until_connected(client, busy.address)
        waiting = [asyncio.create_task(client.publish("shop/orders", Event("a", one))) for one in range(2)]
        await until(lambda: len(busy.gateway.core.calls) == 2)
        more = asyncio.create_task(client.publish("shop/orders", Event("a", 3)))
        await until(lambda: len(other.gateway.core.calls) == 1)
        application.release()
        assert all(len(places) == 1 for places in await asyncio.gather(*waiting, more))


async def until_connected(client: AsyncClient, address: str) -> None:
    """Let a client choose until it is connected to this address."""
    while client.gateway != address:
        await client._gateways.close()
        client._gateways._closed = False
        await client.describe()


async def close_the_connection(client: AsyncClient) -> None:
    """End every call of the client's connection as gRPC does when it is closed."""
    (connection,) = client._gateways._open.values()
    await connection.channel.close()


async def test_a_closed_connection_is_made_again_for_all_that_used_it(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        worked: list[int] = []

        @stage("shop/fulfil", "charge")
        def charge(work: StageWork) -> None:
            worked.append(work.instance)

        background = [asyncio.create_task(client.work(charge)), asyncio.create_task(client.serve("shop/quote", quote))]
        deliveries = client.consume("shop/orders", group="readers", start="beginning")
        deliveries.start()
        received: list[Any] = []

        async def receive() -> None:
            async for event in client.receive("shop/prices"):
                received.append(event.value)

        receiving = asyncio.create_task(receive())
        for number in range(3):
            await deliveries.joined.wait()
            await until(lambda: gateway.servers and gateway.exchanges.get("shop/prices"))
            before = gateway.servers["shop/quote"]
            await close_the_connection(client)
            await until(lambda before=before: gateway.servers.get("shop/quote") not in (None, before))
            await until(lambda: len(gateway.exchanges["shop/prices"]) == 1)
            await client.publish("shop/orders", Event("a", number), partition=0)
            gateway.memory.offer("shop/fulfil", "charge", number + 1, Event("a"))
            gateway.wake()
            async with await anext(deliveries) as delivery:
                assert [event.value for event in delivery.events] == [number]
            await until(lambda number=number: len(gateway.memory.outputs) == number + 1)
            assert (await client.call("shop/quote", Event("q", number))).value == number
            await client.send("shop/prices", Event("p", number))
            await until(lambda number=number: number in received)
        receiving.cancel()
    await asyncio.gather(*background)


async def test_a_request_whose_connection_is_closed_is_made_again_also_in_a_task_group(
    application: MemoryApplication, busy: ServedGateway
) -> None:
    async with AsyncClient(busy.address, retry=SOON) as client:
        application.hold()
        async with asyncio.TaskGroup() as group:
            event = Event("a", 1, id="a", source="/test")
            publishing = group.create_task(client.publish("shop/orders", event, partition=0))
            await until(lambda: len(busy.gateway.core.calls) == 1)
            await close_the_connection(client)
            await until(lambda: busy.gateway.figures.counts["calls:Publish:cancelled"] == 1)
            application.release()
        assert publishing.result() == [EventPlace(0, 1)]


async def test_a_request_of_a_client_that_is_closed_says_so_and_a_cancelled_task_is_cancelled(
    application: MemoryApplication, busy: ServedGateway
) -> None:
    client = AsyncClient(busy.address, retry=SOON)
    application.hold()
    tasks = [asyncio.create_task(client.publish("shop/orders", Event("a", one))) for one in range(2)]
    await until(lambda: len(busy.gateway.core.calls) == 2)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    await client.close()
    with pytest.raises(LocalProtocolError, match="the client is closed"):
        await tasks[1]
    assert tasks[0].cancelled()


async def test_a_blocking_call_says_that_another_thread_has_closed_the_client(
    application: MemoryApplication, busy: ServedGateway
) -> None:
    client = Client(busy.address, retry=SOON)
    application.hold()
    publishing = asyncio.create_task(asyncio.to_thread(client.publish, "shop/orders", Event("a", 1)))
    await until(lambda: len(busy.gateway.core.calls) == 1)
    closing = threading.Thread(target=client.close)
    closing.start()
    with pytest.raises(LocalProtocolError, match="closed"):
        await publishing
    await asyncio.to_thread(closing.join)


async def test_a_function_whose_own_task_was_cancelled_has_failed(gateway: FakeGateway) -> None:
    async def cancelled(given: Any) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a"))
    async with client_of(gateway) as client:
        background = [
            asyncio.create_task(client.work(stage("shop/fulfil", "charge")(cancelled))),
            asyncio.create_task(client.serve("shop/quote", cancelled)),
        ]
        await until(lambda: gateway.memory.nacks and gateway.servers)
        with pytest.raises(PipelineError, match="CancelledError"):
            await client.call("shop/quote", Event("q"))
    await asyncio.gather(*background)
    assert gateway.memory.nacks[0] == (0, "CancelledError: ")
