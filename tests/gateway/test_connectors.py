"""Connectors at gateways over real sockets, with the package's own SDK; the controllers run in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.shop import SHOP, TOKENS
from tests.pems import Pems
from tests.waiting import SECONDS, until
from wallaroo_spark import transport
from wallaroo_spark.connector import Connector, Records
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server.connectors import ConnectorPeers
from wallaroo_spark.pipelines.controller.messages.events import MessagesSent
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.declarations import TokenDeclaration
from wallaroo_spark.pipelines.names import ObjectKey
from wallaroo_spark.pipelines.tokens import create_token
from wallaroo_spark.testing.memory_application import MemoryApplication, serving

pytestmark = pytest.mark.timeout(SECONDS)
ORDERS = PartitionKey("shop/orders", 0)
COUNT = 3_000


def payload(number: int) -> bytes:
    return json.dumps({"type": "order.created", "data": number}).encode()


def connector(workers: str, **settings: Any) -> Connector:
    return Connector("shop", instance="till", workers=workers, **settings)


def numbers(application: MemoryApplication) -> list[int]:
    return [int(record.data or b"") for record in application.records[ORDERS]]


@pytest.mark.parametrize("revision", ["draft-le", "draft-be", "v3"])
async def test_messages_of_the_sdk_are_records_once_and_in_order(application: MemoryApplication, revision: str) -> None:
    async with serving(application) as gateway:
        for begin, end in ((0, COUNT), (COUNT, COUNT + 10)):
            async with connector(gateway.connectors, revision=revision) as sender:
                stream = await sender.open("shop/orders:till-7")
                assert stream.reference == (begin - 1 if begin else None)
                # A program that has lost its place sends everything again.
                for number in range(end):
                    if stream.reference is None or number > stream.reference:
                        await stream.send(payload(number), id=number)
                await stream.end()
        assert gateway.failures == []
    assert numbers(application) == [*range(COUNT + 10)]
    assert application.records[ORDERS][5].id == "shop/orders:till-7/5"
    assert application.records[ORDERS][5].source == "till"


async def test_a_source_is_fed_from_its_reference_on(application: MemoryApplication) -> None:
    async with serving(application) as gateway:
        for _ in range(2):
            async with connector(gateway.connectors) as sender:
                await sender.feed(Records("shop/orders", lambda: ((number, payload(number)) for number in range(500))))
        assert gateway.failures == []
    assert numbers(application) == [*range(500)]


async def test_a_connector_goes_on_at_another_gateway(application: MemoryApplication) -> None:
    async with serving(application, "g1") as other:
        async with serving(application, "g0") as first:
            sender = connector(f"{first.connectors},{other.connectors}")
            async with sender:
                stream = await sender.open("shop/orders")
                for number in range(COUNT):
                    await stream.send(payload(number), id=number)
                    if number == COUNT // 2:
                        first.gateway.end("it is told to")
        assert other.failures == []
    assert numbers(application) == [*range(COUNT)]


async def test_two_programs_of_one_instance_repeat_nothing_and_the_older_one_is_told(
    application: MemoryApplication,
) -> None:
    async with serving(application, "g0") as first, serving(application, "g1") as second:
        old, new = connector(first.connectors), connector(second.connectors)
        async with new:
            with pytest.raises(RemoteProtocolError, match="another program runs under this instance name"):  # noqa: PT012  # the error ends the block
                async with old:
                    stream = await old.open("shop/orders")
                    await stream.send(payload(0), id=0)
                    await old.drain()
                    newer = await new.open("shop/orders")
                    await newer.send(payload(1), id=1)
                    await new.drain()
                    await stream.send(payload(1), id=1)
                    await old.drain()
            await newer.send(payload(2), id=2)
    assert numbers(application) == [0, 1, 2]


async def test_a_message_that_is_no_event_ends_its_connector_with_the_reason(application: MemoryApplication) -> None:
    async with serving(application) as gateway:
        other = Connector("shop", instance="other", workers=gateway.connectors)
        async with other:
            stream = await other.open("shop/orders#1")
            with pytest.raises(RemoteProtocolError, match="message 1 of shop/orders is no CloudEvent in JSON"):  # noqa: PT012  # the error ends the block
                async with connector(gateway.connectors) as sender:
                    bad = await sender.open("shop/orders")
                    await bad.send(payload(0), id=0)
                    await bad.send(b"not JSON", id=1)
                    await sender.drain()
            await stream.send(payload(7), id=7)
            await other.drain()
        assert gateway.failures == []
    assert numbers(application) == [0]
    assert len(application.records[PartitionKey("shop/orders", 1)]) == 1


async def test_many_messages_are_few_rows_of_the_inbox(application: MemoryApplication) -> None:
    async with serving(application) as gateway, connector(gateway.connectors) as sender:
        stream = await sender.open("shop/orders")
        for number in range(COUNT):
            await stream.send(payload(number), id=number)
        await sender.drain()
    rows = [event for _, event in application.seen if isinstance(event, MessagesSent)]
    assert sum(len(row.records) for row in rows) == COUNT
    assert len(rows) < COUNT / 10


async def test_connectors_wait_while_the_inbox_is_slow(application: MemoryApplication) -> None:
    limits = GatewayLimits(inbox_bytes=100_000, connector_bytes=200_000, connector_messages=100_000)
    async with serving(application, limits=limits) as gateway, connector(gateway.connectors) as sender:
        stream = await sender.open("shop/orders")
        gateway.files.stuck.clear()
        sending = asyncio.ensure_future(_send(stream, COUNT))
        await until(lambda: gateway.gateway.queue.full)
        held = gateway.gateway.door.held_bytes
        # What was read before the socket is no longer read: the limits and a buffer of the socket.
        assert held < 200_000 + 2 * transport.base.READ_AT_MOST
        gateway.files.stuck.set()
        await sending
        await sender.drain()
        assert gateway.gateway.door.held_messages == 0
    assert len(application.records[ORDERS]) == COUNT


async def _send(stream: Any, count: int) -> None:
    for number in range(count):
        await stream.send(json.dumps({"type": "t", "data": "x" * 1000}).encode(), id=number)


async def test_a_token_is_the_cookie(application: MemoryApplication) -> None:
    application.apply(SHOP + TOKENS)
    declared = application.schema.objects[ObjectKey("Token", "", "seller")]
    assert isinstance(declared, TokenDeclaration)
    text, token = create_token(declared, 0.0)
    application.tokens[token.id] = token
    async with serving(application) as gateway:
        with pytest.raises(RemoteProtocolError, match="cookie") as refused:
            async with connector(gateway.connectors, cookie="guess") as sender:
                await sender.open("shop/orders")
        assert refused.value.code == "wrong-cookie"
        with pytest.raises(RemoteProtocolError, match="does not permit to publish"):  # noqa: PT012  # the error ends the block
            async with connector(gateway.connectors, cookie=text) as sender:
                await (await sender.open("shop/shipments")).send(payload(1))
                await sender.drain()
        with pytest.raises(RemoteProtocolError, match="no longer accepted"):  # noqa: PT012  # the error ends the block
            async with connector(gateway.connectors, cookie=text) as sender:
                stream = await sender.open("shop/orders")
                await stream.send(payload(1), id=1)
                await sender.drain()
                application.tokens.clear()
                await asyncio.wait_for(_send_for_ever(stream), SECONDS)
    assert numbers(application)[0] == 1


async def _send_for_ever(stream: Any) -> None:
    number = 1
    while True:
        number += 1
        await stream.send(payload(number), id=number)


async def test_connectors_speak_tls(application: MemoryApplication, pems: Pems) -> None:
    async with serving(application) as gateway:
        context = transport.server_context(pems.server, pems.server_key, "")
        door = await transport.serve(ConnectorPeers(gateway.gateway).serve, "127.0.0.1", 0, tls=context)
        address = f"localhost:{door.address[1]}"
        async with connector(address, ca=pems.ca) as sender:
            await (await sender.open("shop/orders")).send(payload(1), id=1)
            await sender.drain()
        await door.close(1.0)
    assert numbers(application) == [1]
