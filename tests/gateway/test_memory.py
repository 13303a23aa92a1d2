"""The memory of a gateway is bounded whatever its clients do: read slowly, not at all, or come in great numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import event, join, publish
from tests.gateway.test_server import joined, refused, streams, stub, until
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.limits import GatewayLimits
from wallaroo_spark.pipelines.controller.messages import events as e

pytestmark = pytest.mark.timeout(SECONDS)
MIB = 1024 * 1024


@asynccontextmanager
async def with_limits(application: MemoryApplication, **limits: Any) -> AsyncIterator[tuple[ServedGateway, Any]]:
    async with (
        serving(application, limits=GatewayLimits(**limits)) as served,
        grpc.aio.insecure_channel(served.address) as channel,
    ):
        yield served, channel


async def test_calls_that_wait_for_their_commit_have_a_limit_in_bytes(application: MemoryApplication) -> None:
    async with with_limits(application, request_bytes=3 * MIB) as (served, channel):
        application.hold()

        def large(id: str) -> pb.PublishRequest:
            return pb.PublishRequest(stream="shop/orders", events=[event(id, data=bytes(MIB))])

        waiting = [streams(channel).Publish(large(id)) for id in "ab"]
        await until(lambda: served.gateway.core.call_bytes.used > 2 * MIB)
        assert (await refused(streams(channel).Publish(large("c"))))[:2] == ("RESOURCE_EXHAUSTED", "gateway-busy")
        application.release()
        assert [len((await call).places) for call in waiting] == [1, 1]
        await streams(channel).Publish(large("c"))
        assert served.gateway.core.call_bytes.used == 0


async def test_a_large_delivery_is_read_in_parts_as_its_client_reads(application: MemoryApplication) -> None:
    application.attach = False
    async with with_limits(application, part_bytes=500) as (served, channel):
        ids = [str(number) for number in range(100)]
        await streams(channel).Publish(publish(*ids))
        call = await joined(streams(channel).Subscribe(), join(max_events=1000))
        found = [(await call.read()).delivery]
        while found[-1].more:
            found.append((await call.read()).delivery)
        assert [one.id for part in found for one in part.events] == ids
        assert [part.first for part in found] == [1, *_ends(len(part.events) for part in found)][:-1]
        reads = served.files.reads
        assert [first for _, _, first, _ in reads] == [1, *_ends(last - first + 1 for _, _, first, last in reads)][:-1]
        assert len(reads) > 3
        await call.write(pb.SubscriberMessage(ack=pb.Ack(delivery=found[0].delivery)))
        assert (await call.read()).HasField("settled")


def _ends(sizes: Iterator[int]) -> list[int]:
    at, found = 1, []
    for size in sizes:
        at += size
        found.append(at)
    return found


async def test_a_delivery_without_its_first_or_with_no_records_is_given_with_the_number_of_missing_ones(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    application.attach = False
    async with with_limits(application) as (served, channel):
        await streams(channel).Publish(publish(*map(str, range(100))))
        read, kept = served.files.read, 50
        monkeypatch.setattr(
            served.files, "read", lambda stream, partition, first, last: read(stream, partition, max(first, kept), last)
        )
        for kept, events, missed in ((50, 51, 49), (101, 0, 100)):
            call = await joined(streams(channel).Subscribe(), join(group=f"from-{kept}", max_events=100))
            found = [(await call.read()).delivery]
            while found[-1].more:
                found.append((await call.read()).delivery)
            assert (sum(len(one.events) for one in found), found[0].missed) == (events, missed)


async def test_deliveries_that_wait_for_all_members_have_a_limit_and_are_read_again_from_the_table(
    application: MemoryApplication,
) -> None:
    async with with_limits(application, delivery_bytes=50_000) as (served, channel):
        calls = [await joined(streams(channel).Subscribe(), join(f"g{number}")) for number in range(20)]
        application.hold()
        publishing = streams(channel).Publish(
            pb.PublishRequest(stream="shop/orders", events=[event("a", data=bytes(20_000))], partition=0)
        )
        application.release()
        await publishing
        assert [(await call.read()).delivery.events[0].id for call in calls] == ["a"] * 20
        assert served.gateway.core.delivery_bytes.used == 0


async def test_a_publisher_that_is_faster_than_batches_waits_or_is_refused_and_members_are_not(
    application: MemoryApplication,
) -> None:
    """With durability ``received`` nothing waits for a batch; what no batch has read is bounded all the same."""
    async with with_limits(application, unread_bytes=100_000) as (served, channel):
        reader = await joined(streams(channel).Subscribe(), join(max_events=1000))
        await streams(channel).Publish(publish("first"))
        delivery = (await reader.read()).delivery.delivery
        application.hold()

        def large(id: str) -> pb.PublishRequest:
            return pb.PublishRequest(
                stream="shop/orders", events=[event(id, data=bytes(10_000))], partition=1, durability=pb.RECEIVED
            )

        found, accepted = ("", "", ""), -1
        while not found[0]:
            accepted += 1
            call = streams(channel).Publish(large(f"a{accepted}"))
            found = ("", "", "") if await answers(call) else await refused(call)
        assert found[:2] == ("RESOURCE_EXHAUSTED", "gateway-busy")
        assert "has not read" in found[2]
        assert 8 <= accepted <= 11
        # A stream of requests is not read from, and waits.
        many = streams(channel).PublishMany()
        for number in range(30):
            await many.write(large(f"b{number}"))
        await many.done_writing()
        # An ack is taken.
        await reader.write(pb.SubscriberMessage(ack=pb.Ack(delivery=delivery)))
        await until(lambda: any(isinstance(one, e.DeliveryAcked) for _, one in application.seen))
        assert sum(isinstance(one, e.RecordsPublished) for _, one in application.seen) < 20
        application.release()
        assert (await reader.read()).HasField("settled")
        replies = [await many.read() for _ in range(30)]
        assert not [one for one in replies if one.problem.code]
        await streams(channel).Publish(large("c"))
        await streams(channel).Publish(publish("last"))
        assert served.gateway.queue.unread_bytes < 100_000


async def answers(call: Any) -> bool:
    """Whether a call succeeds."""
    try:
        await call
    except grpc.aio.AioRpcError:
        return False
    return True


async def test_calls_beyond_the_limit_are_refused_with_a_code_and_the_gateway_goes_on(
    application: MemoryApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels that are opened and never say what to join."""
    async with with_limits(application, calls=50) as (served, channel):
        idle = [streams(channel).Subscribe() for _ in range(100)]
        over = [asyncio.ensure_future(refused(call.read())) for call in idle]
        done, _ = await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        assert next(iter(done)).result()[:2] == ("RESOURCE_EXHAUSTED", "gateway-busy")
        for call in idle:
            call.cancel()
        await asyncio.gather(*over, return_exceptions=True)

        describe = stub(rpc.SchemaStub, channel).Describe
        for _ in range(1000):
            if await answers(describe(pb.DescribeRequest())):
                break
            await asyncio.sleep(0.01)
        assert await answers(describe(pb.DescribeRequest()))
        assert served.failures == []


def rss() -> int:
    """The memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


async def grown(work: Callable[[], Any]) -> int:
    before = rss()
    await work()
    return rss() - before


@pytest.mark.long
async def test_a_consumer_that_does_not_read_costs_no_more_than_the_windows_of_its_connection(
    application: MemoryApplication,
) -> None:
    """300 MiB of events wait for a client that reads none of them."""
    application.attach = False
    async with with_limits(application) as (served, channel):
        data = bytes(MIB)
        for number in range(100):
            events = [event(f"{number}-{one}", data=data) for one in range(3)]
            await streams(channel).Publish(pb.PublishRequest(stream="shop/orders", events=events, partition=0))

        async def subscribe() -> None:
            async with grpc.aio.insecure_channel(served.address) as slow:
                calls = [streams(slow).Subscribe() for _ in range(5)]
                for number, call in enumerate(calls):
                    await call.write(join(f"g{number}", max_events=1000))
                await until(lambda: len(served.files.reads) >= 5)
                reads = 0
                while reads < len(served.files.reads):
                    reads = len(served.files.reads)
                    await asyncio.sleep(1)
                assert len(served.files.reads) < 50

        assert await grown(subscribe) < 100 * MIB
