"""What a gateway would never take is refused before it is sent, and what would end a client is only an error."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.client.fake_gateway import FakeGateway
from tests.waiting import SECONDS, until
from wallaroo_spark.api.limits import MESSAGE_BYTES
from wallaroo_spark.client import AsyncClient, Backoff, Event, ServedCall, StageWork, stage
from wallaroo_spark.errors import ArgumentValueError, PipelineError

SOON = Backoff(initial=0.01, maximum=0.05)
LARGE = b"x" * (MESSAGE_BYTES + 1)
FORKS = """
import os, sys
from wallaroo_spark.client import Client, Event
from wallaroo_spark.errors import LocalProtocolError

client = Client("127.0.0.1:1")
child = os.fork()
if child == 0:
    try:
        client.publish("shop/orders", Event("t"))
    except LocalProtocolError as error:
        client.close()
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
client.close()
"""
pytestmark = pytest.mark.timeout(SECONDS)


async def test_requests_that_are_too_large_are_refused_at_once(gateway: FakeGateway) -> None:
    async with AsyncClient(gateway.address, retry=SOON) as client:
        with pytest.raises(ArgumentValueError, match="publish to shop/orders: the request has") as refused:
            await client.publish("shop/orders", Event("t", LARGE))
        with pytest.raises(ArgumentValueError, match="send to shop/prices: the request has"):
            await client.send("shop/prices", Event("t", LARGE))
        with pytest.raises(ArgumentValueError, match="call shop/quote: the request has"):
            await client.call("shop/quote", Event("t", LARGE))

    assert refused.value.code == "message-too-large"
    assert str(MESSAGE_BYTES) in refused.value.message
    assert gateway.publishes == 0


async def test_an_output_that_is_too_large_is_given_back_with_the_reason(gateway: FakeGateway) -> None:
    @stage("shop/fulfil", "charge")
    def charge(work: StageWork) -> bytes:
        return LARGE

    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a", 1))
    async with AsyncClient(gateway.address, retry=SOON) as client:
        working = asyncio.create_task(client.work(charge))
        await until(lambda: bool(gateway.memory.nacks))
        client.stop()
        await working

    assert f"{MESSAGE_BYTES} are permitted" in gateway.memory.nacks[0][1]


async def test_a_statement_that_is_too_large_nacks_its_delivery(gateway: FakeGateway) -> None:
    async with AsyncClient(gateway.address, retry=SOON) as client:
        await client.publish("shop/orders", Event("t", 1), partition=0)
        deliveries = client.consume("shop/orders", group="g", start="beginning")
        delivery = await anext(deliveries)
        transaction = await delivery.begin()
        with pytest.raises(ArgumentValueError, match="publish in the transaction: the request has"):
            await transaction.publish("shop/paid", Event("t", LARGE))
        await transaction.publish("shop/paid", Event("t", 2))
        written = await delivery.ack()

    assert [one.stream for one in written] == ["shop/paid"]


async def test_a_served_function_that_ends_the_program_is_the_error_of_its_call_alone(gateway: FakeGateway) -> None:
    def quote(call: ServedCall) -> int:
        if call.event.value == "bad":
            sys.exit(3)
        return 1 if call.event.value == "good" else next(iter(()))

    async with AsyncClient(gateway.address, retry=SOON) as client:
        serving = asyncio.create_task(client.serve("shop/quote", quote))
        await until(lambda: "shop/quote" in gateway.servers)
        with pytest.raises(PipelineError, match="SystemExit"):
            await client.call("shop/quote", Event("t", "bad"))
        with pytest.raises(PipelineError, match="StopIteration"):
            await client.call("shop/quote", Event("t", "empty"))
        # A limit that gRPC would take for one that is over.
        assert (await client.call("shop/quote", Event("t", "good"), timeout=float("inf"))).value == 1
        client.stop()
        await serving


async def test_a_client_says_that_its_process_was_forked() -> None:
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", FORKS, stdout=asyncio.subprocess.PIPE)
    output, _ = await program.communicate()

    assert b"is a fork of it" in output
    assert b"make a Client after the fork" in output
