"""The client with a real gateway, around controllers in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import SHOP
from tests.waiting import SECONDS, until
from wallaroo_spark.client import (
    AsyncClient,
    Backoff,
    Event,
    EventPlace,
    Output,
    ServedCall,
    StageWork,
    StreamDelivery,
    stage,
)
from wallaroo_spark.errors import LocalProtocolError, PipelineError
from wallaroo_spark.pipelines.controller.messages.events import GroupJoined
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey

SOON = Backoff(initial=0.01, maximum=0.05)
INPUT = """
kind: Stream
name: orders
namespace: shop
"""
TARGET = """
kind: Stream
name: shipments
namespace: shop
"""


@pytest.fixture
def application() -> Iterator[MemoryApplication]:
    made = MemoryApplication(SHOP)
    yield made
    made.close()


@pytest.fixture
async def gateway(application: MemoryApplication) -> AsyncIterator[ServedGateway]:
    async with serving(application) as served:
        yield served


async def test_events_are_published_once_and_consumed_in_order(gateway: ServedGateway) -> None:
    events = [Event("a", number, id=str(number)) for number in range(300)]
    async with AsyncClient(gateway.address, retry=SOON) as client:
        places = await client.publish("shop/orders", *events, partition=1)
        again = await client.publish("shop/orders", *events[:3], partition=1)
        found: list[Any] = []
        async with client.consume("shop/orders", group="g", start="beginning", max_events=70) as deliveries:
            async for delivery in deliveries:
                if not found:
                    found.append(None)
                    await delivery.nack(reason="once more")
                    continue
                async with delivery:
                    found += [event.value for event in delivery.events]
                if len(found) == 301:
                    break

    assert places == [EventPlace(1, number + 1) for number in range(300)]
    assert again == places[:3]
    assert found[1:] == list(range(300))


async def test_a_transaction_is_written_with_its_ack(gateway: ServedGateway) -> None:
    async with AsyncClient(gateway.address, retry=SOON) as client:
        await client.publish("shop/orders", Event("a"), partition=0)
        deliveries = client.consume("shop/orders", group="g", start="beginning")
        async with (await anext(deliveries)).transaction() as transaction:
            await transaction.publish("shop/shipments", Event("b", 1), Event("b", 2))
        assert [(one.stream, one.places) for one in transaction.written] == [
            ("shop/shipments", (EventPlace(0, 1), EventPlace(0, 2)))
        ]

        await client.publish("shop/orders", Event("a"), partition=0)
        with pytest.raises(PipelineError, match="shop/nowhere"):
            await _write_nowhere(await anext(deliveries))
        async with await anext(deliveries) as again:
            assert again.first == 2

    assert [
        record.data
        for records in gateway.files.application.records.values()
        for record in records
        if record.type == "b"
    ] == [b"1", b"2"]


async def test_a_transaction_whose_target_is_deleted_before_its_ack_is_rejected() -> None:
    application = MemoryApplication(f"{INPUT}---{TARGET}")
    try:
        async with serving(application) as served, AsyncClient(served.address, retry=SOON) as client:
            await client.publish("shop/orders", Event("a"))
            deliveries = client.consume("shop/orders", group="g", start="beginning")
            delivery = await anext(deliveries)
            with pytest.raises(LocalProtocolError, match="the stream shop/shipments was deleted"):
                await _delete_the_target(application, delivery)
            again = await anext(deliveries)
            assert (again.first, [event.type for event in again.events]) == (1, ["a"])
            await again.ack()
    finally:
        application.close()
    assert not application.records[PartitionKey("shop/shipments", 0)]


async def test_partitions_that_are_added_while_a_group_is_away_lose_and_repeat_nothing() -> None:
    application = MemoryApplication(f"{INPUT}partitions: 2\n")
    events = [Event("a", number, id=str(number)) for number in range(20)]
    try:
        async with serving(application) as served, AsyncClient(served.address, retry=SOON) as client:
            async with client.consume("shop/orders", group="g", start="latest"):
                await until(lambda: any(isinstance(one, GroupJoined) for _, one in application.seen))
            places = await client.publish("shop/orders", *events)
            application.apply(f"{INPUT}partitions: 3\n")
            await until(lambda: served.gateway.core.schema.partitions("shop/orders") == 3)
            assert await client.publish("shop/orders", *events) == places
            more = await client.publish("shop/orders", *(Event("a", number) for number in range(20, 40)))
            assert {place.partition for place in more} == {0, 1, 2}

            found: list[Any] = []
            async with client.consume("shop/orders", group="g", start="latest", max_events=50) as deliveries:
                async for delivery in deliveries:
                    async with delivery:
                        found += [event.value for event in delivery.events]
                    if len(found) >= 40:
                        break
    finally:
        application.close()
    assert sorted(found) == [*range(40)]


async def _delete_the_target(application: MemoryApplication, delivery: StreamDelivery) -> None:
    async with delivery.transaction() as transaction:
        await transaction.publish("shop/shipments", Event("b"))
        application.apply(INPUT)
        await until(lambda: delivery.over)


async def _write_nowhere(delivery: StreamDelivery) -> None:
    async with delivery.transaction() as transaction:
        await transaction.publish("shop/shipments", Event("b", 3))
        await transaction.publish("shop/nowhere", Event("b"))


async def test_stages_work_when_one_address_has_no_gateway(application: MemoryApplication) -> None:
    def charge(work: StageWork) -> Any:
        return {"order": work.instance}

    def ship(work: StageWork) -> Output:
        return Output(streams={"shop/shipments": Event("shipped", work.outputs["charge"])})

    stages = (stage("shop/fulfil", "charge")(charge), stage("shop/fulfil", "ship")(ship))
    shipments = application.records
    async with serving(application, "g0") as first:
        client = AsyncClient([first.address, "localhost:1"], retry=SOON)
        working = asyncio.create_task(client.work(*stages))
        async with AsyncClient(first.address, retry=SOON) as shop:
            await shop.publish("shop/orders", Event("order.created", 1))
        await until(lambda: sum(len(some) for key, some in list(shipments.items()) if key.stream == "shop/shipments"))
        client.stop()
        await working
        await client.close()
    found = [one.data for key, some in shipments.items() if key.stream == "shop/shipments" for one in some]
    assert found == [b'{"order":1}']


async def test_calls_and_messages_pass_a_gateway(gateway: ServedGateway) -> None:
    async with AsyncClient(gateway.address, retry=SOON) as client:
        with pytest.raises(PipelineError, match="shop/quote") as raised:
            await client.call("shop/quote", Event("ask"))
        assert raised.value.code
        serving_task = asyncio.create_task(client.serve("shop/quote", lambda call: call.event.value + 1))
        assert await _answer(client) == 2

        received = client.receive("shop/prices", group="g")
        first = asyncio.ensure_future(anext(received))
        await _sent(client)
        assert (await first).value == 5
        await received.aclose()  # type: ignore[attr-defined]  # it is a generator
        client.stop()
        await serving_task


async def _sent(client: AsyncClient) -> None:
    """Send a message, again until there is a receiver."""
    for _ in range(1000):
        if await client.send("shop/prices", Event("price", 5)):
            return
        await asyncio.sleep(0.01)


async def _answer(client: AsyncClient) -> Any:
    """The answer of the endpoint, once it is served."""
    for _ in range(1000):
        try:
            return (await client.call("shop/quote", Event("ask", 1))).value
        except PipelineError:
            await asyncio.sleep(0.01)


async def test_the_schema_has_the_addresses_of_gateways(gateway: ServedGateway) -> None:
    async with AsyncClient(gateway.address, retry=SOON) as client:
        found = await client.describe()

    assert found.gateways == (gateway.address,)
    assert "fulfil" in found.schema


async def test_a_plain_function_reads_and_answers_events_as_they_come(gateway: ServedGateway) -> None:
    """Its second answer waits until the caller has the first one."""
    go_on = threading.Event()

    def doubled(call: ServedCall) -> Iterator[Any]:
        for event in call.events():
            yield event.value * 2
            assert go_on.wait(SECONDS)

    found: list[Any] = []
    async with AsyncClient(gateway.address, retry=SOON) as client, AsyncClient(gateway.address, retry=SOON) as server:
        serves = asyncio.create_task(server.serve("shop/chat", doubled))
        while not found:
            try:
                async for answer in client.call_stream("shop/chat", Event("ask", 1), Event("ask", 5), timeout=SECONDS):
                    found.append(answer.value)
                    go_on.set()
            except PipelineError as error:
                if error.code != "no-consumer":
                    raise
                # The server has not joined yet.
        server.stop()
        await serves

    assert found == [2, 10]
