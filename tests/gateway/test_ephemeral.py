"""Exchanges and endpoints: their pure states, and over gRPC with one gateway and with two."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tests.gateway.memory import MemoryApplication, ServedGateway, serving
from tests.gateway.shop import event
from tests.gateway.test_server import refused
from tests.waiting import SECONDS
from wallaroo_spark.api import pipelines_pb2 as pb
from wallaroo_spark.api import pipelines_pb2_grpc as rpc
from wallaroo_spark.gateway.limits import ByteBudget, GatewayLimits, Refused
from wallaroo_spark.gateway.server.peers import owner_of
from wallaroo_spark.gateway.state.endpoints import Consumer, Endpoints
from wallaroo_spark.gateway.state.exchanges import Exchanges

pytestmark = pytest.mark.timeout(SECONDS)
STREAMING = (False, False)


def nothing() -> None:
    """Nobody waits."""


def test_an_exchange_gives_one_receiver_of_each_group_with_room_a_copy() -> None:
    exchanges = Exchanges(GatewayLimits(exchange_messages=1), lambda free: free[0], ByteBudget(1 << 20))
    assert exchanges.send("e", event("0")) == 0
    first, second = exchanges.join("e", "a", nothing), exchanges.join("e", "a", nothing)
    other = exchanges.join("e", "b", nothing)
    exchanges.join("f", "a", nothing)
    assert [exchanges.send("e", event(str(one))) for one in range(1, 4)] == [2, 1, 0]
    taken = [one.waiting.take() for one in (first, second, other)]
    assert [one.id for one in taken if one is not None] == ["1", "2", "1"]
    exchanges.leave(other)
    assert exchanges.send("e", event("4")) == 1
    for one in (first, second):
        exchanges.leave(one)
    assert len(exchanges.receivers) == 1


def test_calls_go_to_the_consumer_with_most_room_and_wait_when_all_are_busy() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20))
    with pytest.raises(Refused) as caught:
        endpoints.call("e", event("x"), STREAMING, nothing)
    assert (caught.value.status, caught.value.code) == ("FAILED_PRECONDITION", "no-consumer")
    small, large = endpoints.serve("e", 1, nothing), endpoints.serve("e", 2, nothing)
    calls = [endpoints.call("e", event(str(one)), STREAMING, nothing) for one in range(5)]
    assert [call.consumer for call in calls] == [small, large, large, None, None]
    endpoints.answer(large, pb.ServeMessage(call=2, event=event("answer"), end=True))
    assert calls[2].done
    assert calls[3].consumer is large
    endpoints.hang_up(calls[4])
    endpoints.leave(small)
    assert calls[0].problem is not None
    assert calls[0].problem.code == "consumer-gone"
    last = endpoints.call("e", event("y"), STREAMING, nothing)
    endpoints.leave(large)
    assert [call.problem.code for call in (calls[1], calls[3], last) if call.problem] == [
        "consumer-gone",
        "consumer-gone",
        "no-consumer",
    ]


def test_consumers_take_turns_and_a_new_one_has_no_more_calls_than_the_others() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20))
    consumers = [endpoints.serve("e", 10, nothing)]

    def call() -> Consumer:
        consumer = endpoints.call("e", event("q"), (True, True), nothing).consumer
        assert consumer is not None
        endpoints.answer(consumer, pb.ServeMessage(call=consumer.last, event=event("a")))
        return consumer

    for _ in range(300):
        call()
    consumers += [endpoints.serve("e", 10, nothing), endpoints.serve("e", 10, nothing)]
    taken = [call() for _ in range(300)]
    assert [taken.count(one) for one in consumers] == [100, 100, 100]


def test_a_consumer_whose_calls_fail_rests_while_another_answers() -> None:
    now = [0.0]
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20), clock=lambda: now[0])
    good, broken = endpoints.serve("e", 1, nothing), endpoints.serve("e", 50, nothing)
    failed = answered = 0
    for _ in range(320):
        now[0] += 0.1
        calls = [endpoints.call("e", event("q"), (True, True), nothing) for _ in range(2)]
        while not all(call.done for call in calls):
            for number in list(broken.calls):
                endpoints.answer(broken, pb.ServeMessage(call=number, error="broken"))
            for number in list(good.calls):
                endpoints.answer(good, pb.ServeMessage(call=number, event=event("a")))
        failed += sum(call.problem is not None for call in calls)
        answered += sum(call.problem is None for call in calls)
    # Three failures, and then one behind each rest of 1, 2, 4, 8 and 16 seconds, of which two may begin at once.
    assert failed <= 10
    assert answered == 640 - failed


def test_calls_wait_for_those_that_do_not_rest_and_all_that_rest_are_used() -> None:
    now = [0.0]
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20), clock=lambda: now[0])
    first, second = endpoints.serve("e", 1, nothing), endpoints.serve("e", 1, nothing)
    for consumer in (first, second) * 3:
        call = endpoints.call("e", event("q"), (True, True), nothing)
        assert call.consumer is consumer
        endpoints.answer(consumer, pb.ServeMessage(call=consumer.last, error="no"))
    # Both rest, so both are used, and an answer ends a rest.
    call = endpoints.call("e", event("q"), (True, True), nothing)
    assert call.consumer is first
    endpoints.answer(first, pb.ServeMessage(call=first.last, event=event("a")))
    kept = [endpoints.call("e", event("q"), (True, True), nothing) for _ in range(2)]
    assert [one.consumer for one in kept] == [first, None]
    now[0] += 1.0
    endpoints.rested()
    assert kept[1].consumer is second


def test_a_call_whose_time_is_over_is_a_failure_of_its_consumer_and_one_that_was_cancelled_is_not() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20), clock=lambda: 0.0)
    consumer = endpoints.serve("e", 1, nothing)
    for late in (True, False, True):
        call = endpoints.call("e", event("q"), (True, True), nothing)
        consumer.take()
        endpoints.hang_up(call, late=late)
        assert consumer.take() is not None
    assert consumer.failures == 2


def test_a_consumer_may_forget_a_call_behind_its_end_and_behind_gone() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20))
    consumer = endpoints.serve("e", 2, nothing)
    ended, left = (endpoints.call("e", event("q"), STREAMING, nothing) for _ in range(2))
    assert [one.call for one in iter(consumer.take, None) if one is not None] == [1, 2]
    endpoints.answer(consumer, pb.ServeMessage(call=1, event=event("a"), end=True))
    endpoints.more(ended, event("more"))
    endpoints.finish(ended)
    endpoints.hang_up(ended)
    endpoints.more(left, event("more"))
    endpoints.hang_up(left)
    endpoints.answer(consumer, pb.ServeMessage(call=2, event=event("late")))
    assert [(one.call, one.gone) for one in iter(consumer.take, None) if one is not None] == [(2, True)]


def test_a_single_answer_ends_the_call_and_later_ones_are_dropped() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20))
    consumer = endpoints.serve("e", 1, nothing)
    call = endpoints.call("e", event("q"), (True, True), nothing)
    given = consumer.take()
    assert given is not None
    assert (given.call, given.event.id, given.end) == (1, "q", True)
    for one in ("a", "b"):
        endpoints.answer(consumer, pb.ServeMessage(call=1, event=event(one)))
    answer = call.answers.take()
    assert answer is not None
    assert answer.event.id == "a"
    assert (call.done, call.answers.take(), consumer.calls) == (True, None, {})
    with pytest.raises(Refused):
        endpoints.more(call, event("r"))


def test_a_caller_that_does_not_read_ends_and_its_consumer_is_told() -> None:
    endpoints = Endpoints(GatewayLimits(call_messages=2), ByteBudget(1 << 20))
    consumer = endpoints.serve("e", 1, nothing)
    call = endpoints.call("e", event("q"), STREAMING, nothing)
    taken = [consumer.take()]
    for one in "abc":
        endpoints.answer(consumer, pb.ServeMessage(call=1, event=event(one)))
    assert call.problem is not None
    assert call.problem.code == "gateway-busy"
    assert [one.gone for one in (*taken, *iter(consumer.take, None)) if one is not None] == [False, True]


def test_nothing_is_kept_of_callers_that_have_gone_before_their_consumer_reads() -> None:
    budget = ByteBudget(10_000)
    endpoints = Endpoints(GatewayLimits(), budget)
    consumer = endpoints.serve("e", 1, nothing)
    for number in range(1000):
        endpoints.hang_up(endpoints.call("e", event(str(number), data=bytes(1000)), STREAMING, nothing))
    assert (budget.used, consumer.take()) == (0, None)


def test_messages_of_calls_and_exchanges_have_one_limit_for_all_clients() -> None:
    budget = ByteBudget(10_000)
    endpoints, exchanges = Endpoints(GatewayLimits(), budget), Exchanges(GatewayLimits(), lambda free: free[0], budget)
    consumer = endpoints.serve("e", 2, nothing)
    calls = [endpoints.call("e", event(str(number), data=bytes(900)), STREAMING, nothing) for number in range(9)]
    receiver = exchanges.join("x", "a", nothing)
    assert [exchanges.send("x", event(str(one), data=bytes(900))) for one in range(3)] == [1, 0, 0]
    with pytest.raises(Refused) as caught:
        endpoints.call("e", event("y", data=bytes(900)), STREAMING, nothing)
    assert (caught.value.status, caught.value.code) == ("RESOURCE_EXHAUSTED", "gateway-busy")
    assert consumer.take() is not None
    calls.append(endpoints.call("e", event("y", data=bytes(900)), STREAMING, nothing))
    exchanges.leave(receiver)
    for call in calls:
        endpoints.hang_up(call)
    assert budget.used == 0


def test_the_messages_of_each_call_keep_their_order_and_calls_take_turns() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20))
    consumer = endpoints.serve("e", 2, nothing)
    calls = [endpoints.call("e", event(f"{one}1"), STREAMING, nothing) for one in "ab"]
    for call, one in zip(calls, "ab", strict=True):
        for number in (2, 3):
            endpoints.more(call, event(f"{one}{number}"))
    taken = [one.event.id for one in iter(consumer.take, None) if one is not None]
    assert taken == ["a1", "b1", "a2", "b2", "a3", "b3"]


def test_a_consumer_that_retires_ends_after_its_last_call() -> None:
    endpoints = Endpoints(GatewayLimits(), ByteBudget(1 << 20))
    consumer = endpoints.serve("e", 2, nothing)
    endpoints.call("e", event("q"), STREAMING, nothing)
    consumer.take()
    problem = Refused("moves", code="gateway-ends", status="UNAVAILABLE")
    endpoints.retire(consumer, problem)
    assert consumer.ended is None
    with pytest.raises(Refused):
        endpoints.call("e", event("r"), STREAMING, nothing)
    endpoints.answer(consumer, pb.ServeMessage(call=1, error="x"))
    assert consumer.ended is problem


def test_a_gateway_that_goes_moves_only_its_own_objects() -> None:
    paths = [f"shop/e{number}" for number in range(100)]
    before = {path: owner_of("Endpoint", path, ["g0", "g1", "g2"]) for path in paths}
    after = {path: owner_of("Endpoint", path, ["g0", "g2"]) for path in paths}
    assert set(before.values()) == {"g0", "g1", "g2"}
    assert all(after[path] == owner for path, owner in before.items() if owner != "g1")


@contextlib.asynccontextmanager
async def gateways(application: MemoryApplication, count: int) -> AsyncIterator[list[Any]]:
    """So many gateways that know each other, and a channel to each."""
    async with contextlib.AsyncExitStack() as stack:
        served: list[ServedGateway] = []
        for number in range(count):
            served.append(await stack.enter_async_context(serving(application, f"g{number}")))
        for one in served:
            one.peers.update({f"g{number}": other.address for number, other in enumerate(served)})
        yield [await stack.enter_async_context(grpc.aio.insecure_channel(one.address)) for one in served]


def exchanges_of(channel: Any) -> Any:
    kind: Any = rpc.ExchangesStub
    return kind(channel)


def endpoints_of(channel: Any) -> Any:
    kind: Any = rpc.EndpointsStub
    return kind(channel)


@pytest.mark.parametrize("count", [1, 2])
async def test_messages_of_an_exchange_reach_a_receiver_of_each_group_at_any_gateway(
    application: MemoryApplication, count: int
) -> None:
    async with gateways(application, count) as channels:
        calls = []
        for number, channel in enumerate(channels * 2):
            calls.append(exchanges_of(channel).Receive(pb.ReceiveRequest(exchange="shop/prices", group=f"g{number}")))
            await calls[-1].initial_metadata()
        for number, channel in enumerate(channels):
            request = pb.SendRequest(exchange="shop/prices", event=event(f"m{number}"))
            assert (await exchanges_of(channel).Send(request)).groups == 2 * count
        for call in calls:
            assert [(await call.read()).id for _ in channels] == [f"m{number}" for number in range(count)]
        found = await refused(exchanges_of(channels[0]).Send(pb.SendRequest(exchange="shop/none", event=event("m"))))
        assert found[:2] == ("NOT_FOUND", "object-unknown")


async def served_by(channel: Any, endpoint: str, answers: list[str], stop: asyncio.Event) -> None:
    """A consumer that answers each first message with some events."""
    call = endpoints_of(channel).Serve()
    await call.write(pb.ServeMessage(endpoint=endpoint, concurrency=4))
    await call.initial_metadata()
    stop.set()
    while (given := await call.read()) is not grpc.aio.EOF:
        if given.HasField("event"):
            if given.event.id == "bad":
                await call.write(pb.ServeMessage(call=given.call, error="no"))
                continue
            for place, answer in enumerate(answers):
                message = pb.ServeMessage(call=given.call, event=event(f"{answer} {given.event.id}"))
                message.end = place == len(answers) - 1
                await call.write(message)


async def called(channel: Any, endpoint: str, *ids: str) -> list[str]:
    call = endpoints_of(channel).Call()
    for id in ids:
        await call.write(pb.CallMessage(endpoint=endpoint, event=event(id)))
    await call.done_writing()
    answers = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        answers.append(answer.event.id)
    return answers


@pytest.mark.parametrize("count", [1, 2])
async def test_calls_are_answered_whichever_gateway_caller_and_consumer_are_at(
    application: MemoryApplication, count: int
) -> None:
    async with gateways(application, count) as channels:
        for channel in channels:
            found = await refused(called(channel, "shop/quote", "q"))
            assert found[:2] == ("FAILED_PRECONDITION", "no-consumer")
        there = [asyncio.Event(), asyncio.Event()]
        consumers = [
            asyncio.ensure_future(served_by(channels[-1], "shop/quote", ["one"], there[0])),
            asyncio.ensure_future(served_by(channels[0], "shop/chat", ["a", "b"], there[1])),
        ]
        for one in there:
            await one.wait()
        for channel in channels:
            assert await called(channel, "shop/quote", "q") == ["one q"]
            assert (await called(channel, "shop/chat", "x"))[:2] == ["a x", "b x"]
            assert (await refused(called(channel, "shop/quote", "bad")))[:2] == ("UNKNOWN", "call-failed")
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)


async def test_a_caller_is_told_that_its_consumer_has_gone(application: MemoryApplication) -> None:
    async with gateways(application, 1) as (channel,):
        serve = endpoints_of(channel).Serve()
        await serve.write(pb.ServeMessage(endpoint="shop/quote"))
        await serve.initial_metadata()
        call = asyncio.ensure_future(refused(called(channel, "shop/quote", "q")))
        assert (await serve.read()).event.id == "q"
        serve.cancel()
        assert (await call)[:2] == ("UNKNOWN", "consumer-gone")


@pytest.mark.parametrize("first", [pb.CallMessage(endpoint="shop/chat"), pb.CallMessage(event=event("q"))])
async def test_the_first_message_of_a_call_has_the_endpoint_and_an_event(
    application: MemoryApplication, first: pb.CallMessage
) -> None:
    async with gateways(application, 1) as (channel,):
        call = endpoints_of(channel).Call()
        await call.write(first)
        assert (await refused(call.read()))[0] in ("INVALID_ARGUMENT", "NOT_FOUND")
