"""Calls that say nothing, or come in great numbers, and tokens that are revoked: nobody else is kept out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, schema_of, serving
from tests.gateway.shop import SHOP, TOKENS, event, join, publish
from tests.gateway.test_ephemeral import endpoints_of
from tests.gateway.test_memory import with_limits
from tests.gateway.test_server import joined, refused, streams
from tests.waiting import SECONDS, until
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.gateway.limits import Refused
from wallaroo_spark.gateway.state.schema_view import SchemaView
from wallaroo_spark.gateway.tokens import PUBLISH, AccessRules, create_token
from wallaroo_spark.pipelines.schema.declarations import TokenDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey

pytestmark = pytest.mark.timeout(SECONDS)
METHODS = [
    f"/{service.full_name}/{method.name}"
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.fixture
def guarded() -> Iterator[MemoryApplication]:
    """An application that declares Tokens."""
    made = MemoryApplication(SHOP + TOKENS)
    yield made
    made.close()


def token(application: MemoryApplication, name: str) -> str:
    """A new token of a declared name."""
    declared = application.schema.objects[ObjectKey("Token", "", name)]
    assert isinstance(declared, TokenDeclaration)
    text, kept = create_token(declared, 0.0)
    application.tokens[kept.id] = kept
    return text


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {text}"),)


def silent(channel: Any, method: str, **fields: Any) -> Any:
    """A call of any method that sends no message, and does not end its side."""
    return channel.stream_stream(method)(**fields)


@pytest.mark.parametrize("method", METHODS)
async def test_a_call_without_a_token_ends_before_its_first_message(guarded: MemoryApplication, method: str) -> None:
    async with serving(guarded) as served, grpc.aio.insecure_channel(served.address) as channel:
        calls = [silent(channel, method) for _ in range(50)]
        found = await asyncio.gather(*(refused(call.read()) for call in calls))
        assert {one[:2] for one in found} == {("UNAUTHENTICATED", "token-refused")}


@pytest.mark.parametrize("method", METHODS)
async def test_a_call_without_a_message_ends(application: MemoryApplication, method: str) -> None:
    async with with_limits(application, first_seconds=0.1) as (_, channel):
        status, code, text = await refused(silent(channel, method).read())
        assert (status, code) == ("INVALID_ARGUMENT", "request-invalid")
        assert "no message within 0.1 seconds" in text


async def test_calls_that_say_nothing_keep_nobody_out(application: MemoryApplication) -> None:
    async with with_limits(application, silent_calls=20, calls=50) as (_, channel):
        idle = [asyncio.ensure_future(refused(silent(channel, METHODS[one % 10]).read())) for one in range(200)]
        for number in range(5):
            await streams(channel).Publish(publish(str(number)))
        await until(lambda: sum(one.done() for one in idle) >= 180)
        reader = await joined(streams(channel).Subscribe(), join())
        assert (await reader.read()).delivery.events[0].id == "0"
        for one in idle:
            one.cancel()
        await asyncio.gather(*idle, return_exceptions=True)


async def test_a_client_has_a_limit_of_open_calls_and_another_token_has_its_own(guarded: MemoryApplication) -> None:
    async with with_limits(guarded, client_calls=5) as (_, channel):
        mine, other = bearer(token(guarded, "everything")), bearer(token(guarded, "everything"))
        # The gateway takes the tokens within a second.
        await until_taken(channel, other)
        calls = [await joined(streams(channel).Subscribe(metadata=mine), join(f"g{one}")) for one in range(5)]
        status, code, text = await refused(streams(channel).Publish(publish("a"), metadata=mine))
        assert (status, code) == ("RESOURCE_EXHAUSTED", "gateway-busy")
        assert "5 calls with this token are open" in text
        await streams(channel).Publish(publish("a"), metadata=other)
        calls[0].cancel()
        await until_taken(channel, mine)


async def until_taken(channel: Any, metadata: Any) -> None:
    """Publish until it is not refused."""
    while True:
        try:
            await streams(channel).Publish(publish("p"), metadata=metadata)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.05)
        else:
            return


async def test_a_call_of_a_revoked_token_ends_and_its_consumer_is_told(guarded: MemoryApplication) -> None:
    async with serving(guarded) as served, grpc.aio.insecure_channel(served.address) as channel:
        mine, other = bearer(token(guarded, "everything")), bearer(token(guarded, "everything"))
        await until_taken(channel, mine)
        consumer = endpoints_of(channel).Serve(metadata=other)
        await consumer.write(pb.ServeMessage(endpoint="shop/chat"))
        await consumer.initial_metadata()
        call = endpoints_of(channel).Call(metadata=mine)
        await call.write(pb.CallMessage(endpoint="shop/chat", event=event("q")))
        assert (await consumer.read()).event.id == "q"
        del guarded.tokens[mine[0][1].split("_")[1]]
        assert (await refused(call.read()))[:2] == ("UNAUTHENTICATED", "token-refused")
        assert (await consumer.read()).gone


def test_a_check_looks_through_the_objects_of_the_schema_once_for_each_version() -> None:
    class Counted(dict[Any, Any]):
        passes = 0

        def values(self) -> Any:
            Counted.passes += 1
            return super().values()

    schema = SchemaView(1, Counted(schema_of(SHOP + TOKENS).objects))
    for _ in range(10):
        with pytest.raises(Refused):
            AccessRules(schema.tokens).check("wst_x", PUBLISH, "Stream", "shop/orders", 0.0)
        _ = schema.keys
    assert Counted.passes == 2
