"""Requests: publishing, cancelling, exchanges and endpoints, and connections that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.client.fake_gateway import FakeGateway
from tests.pems import Pems
from wallaroo_spark.client import AsyncClient, Backoff, Event, EventPlace, ServedCall
from wallaroo_spark.errors import ConfigurationError, PipelineError, TransportError
from wallaroo_spark.registry import EmbeddedRedis, application_registry

SOON = Backoff(initial=0.01, maximum=0.05)


def client_of(gateway: FakeGateway, **settings: Any) -> AsyncClient:
    return AsyncClient(gateway.address, retry=SOON, **settings)


async def test_published_events_have_places(gateway: FakeGateway) -> None:
    async with client_of(gateway, source="/shop") as client:
        places = await client.publish("shop/orders", Event("a", 1), Event("a", 2), partition=1)

        assert places == [EventPlace(1, 1), EventPlace(1, 2)]
        assert [event.source for event in gateway.memory.streams["shop/orders"][1]] == ["/shop", "/shop"]
        assert await client.publish("shop/orders", Event("a"), durability="received") == []
        assert await client.publish("shop/orders", Event("a"), delay=3) == []


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
async def test_a_publish_whose_answer_is_lost_is_written_once(gateway: FakeGateway, status: grpc.StatusCode) -> None:
    """A gateway that ends cancels the calls that it has."""
    gateway.lose_answers, gateway.lost_status = 2, status
    async with client_of(gateway) as client:
        places = await client.publish("shop/orders", Event("a"), partition=0)

    assert places == [EventPlace(0, 1)]
    assert gateway.publishes == 3


async def test_a_group_is_deleted_though_the_answer_to_that_is_lost(gateway: FakeGateway) -> None:
    gateway.memory.cursors = {("shop/orders", "billing", number): 1 for number in range(2)}
    gateway.lose_answers = 1
    async with client_of(gateway) as client:
        assert await client.change_group("shop/orders", "billing", "delete") == 0
        with pytest.raises(PipelineError, match="there is no group billing"):
            await client.change_group("shop/orders", "billing", "delete")


async def test_another_gateway_answers_when_one_has_died(gateway: FakeGateway) -> None:
    other = await FakeGateway(gateway.memory).start()
    async with AsyncClient([gateway.address, other.address], retry=SOON) as client:
        await client.publish("shop/orders", Event("a"), partition=0)
        dead, alive = (gateway, other) if client.gateway == gateway.address else (other, gateway)
        await dead.stop()

        assert await client.publish("shop/orders", Event("a"), partition=0) == [EventPlace(0, 2)]
        assert client.gateway == alive.address
    await other.stop()


async def test_gateways_are_found_in_the_registry(gateway: FakeGateway) -> None:
    with EmbeddedRedis() as redis, application_registry(redis.url, "shop") as registry:
        async with AsyncClient(registry=redis.url, application="shop", retry=Backoff(attempts=1)) as client:
            with pytest.raises(TransportError, match="no gateway of application 'shop' is registered"):
                await client.publish("shop/orders", Event("a"))
        registry.acquire(0, registry.next_submission(), "g0", gateway.address, "")
        async with AsyncClient(registry=redis.url, application="shop", retry=SOON) as client:
            assert await client.publish("shop/orders", Event("a"), partition=1) == [EventPlace(1, 1)]


async def test_an_address_without_a_gateway_is_named() -> None:
    async with AsyncClient("localhost:1", retry=Backoff(attempts=2, initial=0.01)) as client:
        with pytest.raises(TransportError, match=r"no gateway can be reached \(localhost:1: ") as raised:
            await client.publish("shop/orders", Event("a"))
    assert raised.value.code == "gateway-unreachable"


async def test_a_refusal_has_the_code_of_the_gateway(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(PipelineError, match="publish to shop/nothing: no stream shop/nothing") as raised:
            await client.publish("shop/nothing", Event("a"))
    assert raised.value.code == "stream-unknown"


async def test_the_token_is_presented(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.token = "wst_1"
    monkeypatch.setenv("SHOP_TOKEN", "wst_1")
    async with client_of(gateway, token="env:SHOP_TOKEN") as client:
        await client.publish("shop/orders", Event("a"))
    async with client_of(gateway, token="wrong") as client:
        with pytest.raises(ConfigurationError, match="the token is not known") as raised:
            await client.publish("shop/orders", Event("a"))
    assert raised.value.code == "token-refused"
    assert "wrong" not in str(raised.value)


async def test_tls_with_certificates_of_both_sides(gateway: FakeGateway, pems: Pems) -> None:
    await gateway.stop()
    read = {name: open(getattr(pems, name), "rb").read() for name in ("server_key", "server", "ca")}  # noqa: ASYNC230, SIM115 -- small files of a test
    gateway.credentials = grpc.ssl_server_credentials([(read["server_key"], read["server"])], read["ca"], True)
    gateway.port = 0
    await gateway.start()
    async with client_of(gateway, ca=pems.ca, certificate=pems.client, key=pems.client_key) as client:
        assert await client.publish("shop/orders", Event("a"), partition=0) == [EventPlace(0, 1)]
    async with AsyncClient(gateway.address, ca=pems.other_ca, retry=Backoff(attempts=1)) as client:
        with pytest.raises(TransportError, match="no gateway can be reached"):
            await client.publish("shop/orders", Event("a"))


async def test_an_instance_is_cancelled_though_the_answer_to_that_is_lost(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        gateway.lose_answers = 1
        await client.cancel("shop/fulfil", 1, 17)
        with pytest.raises(PipelineError, match="no active instance"):
            await client.cancel("shop/fulfil", 1, 17)
        await client.cancel("shop/fulfil", 1, 1 << 40, timeout=float("inf"))
    assert gateway.memory.cancelled == [("shop/fulfil", 1, 17), ("shop/fulfil", 1, 1 << 40)]


async def test_the_schema_is_described(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        found = await client.describe()
    assert (found.version, found.schema, found.gateways) == (3, "kind: Stream\n", (gateway.address,))


async def test_a_message_reaches_the_receivers_of_an_exchange(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        assert await client.send("shop/news", Event("a")) == 0
        received = client.receive("shop/news", group="g")
        first = asyncio.ensure_future(anext(received))
        await gateway.joined.wait()
        assert await client.send("shop/news", Event("a", "hello")) == 1
        assert (await first).value == "hello"
        await received.aclose()  # type: ignore[attr-defined]  # it is a generator


async def streamed(call: ServedCall) -> AsyncIterator[Any]:
    async for event in call.events():
        yield event.value * 2


def failing(call: ServedCall) -> Any:
    raise ValueError(f"not {call.event.value}")


@pytest.mark.parametrize("function", [lambda call: call.event.value + 1, streamed, failing])
async def test_a_call_is_answered(gateway: FakeGateway, function: Any) -> None:
    async with client_of(gateway) as client:
        with pytest.raises(PipelineError, match="nothing serves shop/price") as raised:
            await client.call("shop/price", Event("ask", 1))
        assert raised.value.code == "no-consumer"
        serving = asyncio.create_task(client.serve("shop/price", function))
        await gateway.joined.wait()
        if function is failing:
            with pytest.raises(PipelineError, match="call shop/price: ValueError: not 1"):
                await client.call("shop/price", Event("ask", 1))
        elif function is streamed:
            answers = client.call_stream("shop/price", Event("ask", 1), Event("ask", 5))
            assert [answer.value async for answer in answers] == [2, 10]
        else:
            answer = await client.call("shop/price", Event("ask", 1))
            assert (answer.type, answer.value) == ("ask.answer", 2)
        client.stop()
        await serving
