"""A client on a machine whose network is cut without a sign, in a network namespace of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication
from tests.gateway.shop import SHOP, join, publish
from tests.gateway.test_server import joined, streams, until
from tests.waiting import SECONDS
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.gateway.server.gateway import Gateway
from wallaroo_spark.gateway.server.listener import bind, make_server
from wallaroo_spark.gateway.server.peers import Peers
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * SECONDS)]
SPACE = f"wallaroo-gateway-{os.getpid()}"
NEAR, FAR = (f"198.19.{os.getpid() % 251}.{last}" for last in (1, 2))

CONSUME = """
import sys
from wallaroo_spark.client import Client
with Client(sys.argv[1]) as client:
    for delivery in client.consume("shop/orders", group="readers", start="beginning"):
        print(*(event.id for event in delivery.events), flush=True)
        sys.stdin.read()
"""
PUBLISH = """
import sys
from wallaroo_spark.client import Client, Event
with Client(sys.argv[1], timeout=200) as client:
    print(client.publish("shop/orders", Event("t", id="a", source="/far"), partition=0)[0].offset, flush=True)
"""


def _ip(*words: str, inside: bool = False) -> None:
    prefix = ["ip", "netns", "exec", SPACE, "ip"] if inside else ["ip"]
    subprocess.run([*prefix, *words], check=True, capture_output=True)


@pytest.fixture
def far_machine() -> Iterator[None]:
    """A machine of its own behind a cable of its own."""
    try:
        _ip("netns", "add", SPACE)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces cannot be made here; they need root")
    cable = f"wg{os.getpid()}"[:14]
    try:
        _ip("link", "add", f"{cable}a", "type", "veth", "peer", "name", f"{cable}b", "netns", SPACE)
        _ip("addr", "add", f"{NEAR}/30", "dev", f"{cable}a")
        _ip("link", "set", f"{cable}a", "up")
        _ip("addr", "add", f"{FAR}/30", "dev", f"{cable}b", inside=True)
        _ip("link", "set", f"{cable}b", "up", inside=True)
        yield
    finally:
        subprocess.run(["ip", "route", "del", "blackhole", f"{FAR}/32"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", f"{cable}a"], check=False, capture_output=True)
        _ip("netns", "del", SPACE)


def cut(*, mended: bool = False) -> None:
    """From now on nothing arrives, in both directions; nobody is told."""
    _ip("route", "del" if mended else "add", "blackhole", f"{NEAR}/32", inside=True)
    _ip("route", "del" if mended else "add", "blackhole", f"{FAR}/32")


@asynccontextmanager
async def far_program(text: str, address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    words = ("ip", "netns", "exec", SPACE, sys.executable, "-c", text, address)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


@pytest.fixture
def application() -> Iterator[MemoryApplication]:
    made = MemoryApplication(SHOP)
    yield made
    made.close()


@pytest.fixture
async def address(application: MemoryApplication, far_machine: None) -> AsyncIterator[str]:
    """The address of a gateway that the far machine reaches."""
    failures: list[BaseException] = []
    gateway = Gateway("g0", application.files(), GatewayLimits(), failures.append, Peers("g0", dict))
    server: Any = make_server(gateway)
    port = bind(server, NEAR, 0)
    await gateway.start()
    await server.start()
    yield f"{NEAR}:{port}"
    gateway.end("the test ends")
    await server.stop(1.0)
    await gateway.close()
    assert failures == []


async def test_the_delivery_of_a_member_whose_network_is_cut_goes_to_another(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        await streams(channel).Publish(publish("a"))
        async with far_program(CONSUME, address) as far:
            assert await line_of(far) == "a"
            other = await joined(streams(channel).Subscribe(), join())
            cut()
            # The page says 20 seconds; TCP itself would try for a quarter of an hour.
            async with asyncio.timeout(SECONDS):
                assert (await other.read()).delivery.events[0].id == "a"


async def test_a_publish_whose_network_is_cut_before_its_answer_is_written_once_and_answered(
    application: MemoryApplication, address: str
) -> None:
    application.hold()
    async with far_program(PUBLISH, address) as far:
        await until(lambda: any(isinstance(event, RecordsPublished) for _, event in application.seen))
        cut()
        application.release()
        await until(lambda: len(application.records[PartitionKey("shop/orders", 0)]) == 1)
        answer = asyncio.ensure_future(line_of(far))
        # The client gives its connection up, and its attempts to connect fail.
        await asyncio.sleep(50)
        assert not answer.done()
        cut(mended=True)
        assert await answer == "1"
        assert [one.id for one in application.records[PartitionKey("shop/orders", 0)]] == ["a"]
