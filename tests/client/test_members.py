"""Groups and stages: deliveries, acks, nacks, transactions, functions, and gateways that die."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.client.fake_gateway import FakeGateway
from tests.client.test_client import client_of
from tests.waiting import until
from wallaroo_spark.client import Again, AsyncClient, Event, Output, StageWork, stage
from wallaroo_spark.errors import LocalProtocolError, PipelineError, TransportError


def works_on(gateway: FakeGateway, function: Any, **settings: Any) -> tuple[AsyncClient, asyncio.Task[None]]:
    """A client that works on the stage charge."""
    client = client_of(gateway, **settings)
    return client, asyncio.create_task(client.work(stage("shop/fulfil", "charge", concurrency=4)(function)))


async def test_a_delivery_is_acked_by_its_block(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.publish("shop/orders", *(Event("a", number) for number in range(5)), partition=0)
        seen: list[Any] = []
        async with client.consume("shop/orders", group="billing", start="beginning", max_events=2) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    seen += [event.value for event in delivery.events]
                if len(seen) == 5:
                    break

    assert seen == [0, 1, 2, 3, 4]
    assert gateway.memory.cursors["shop/orders", "billing", 0] == 5


async def test_an_error_in_the_block_nacks_and_the_same_events_come_again(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.publish("shop/orders", Event("a", 1), partition=0)
        deliveries = client.consume("shop/orders", group="billing", start=1)
        with pytest.raises(ValueError, match="no"):
            async with await anext(deliveries):
                raise ValueError("no")
        again = await anext(deliveries)
        await again.nack(1.5, "later")
        last = await anext(deliveries)
        await last.ack()

        assert gateway.memory.nacks == [(0, "ValueError: no"), (1500, "later")]
        assert (again.first, last.first, [event.value for event in last.events]) == (1, 1, [1])
        with pytest.raises(LocalProtocolError, match="the delivery has ended: it was acked or nacked already"):
            await last.ack()


async def test_consuming_goes_on_with_a_gateway_that_comes_back(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.publish("shop/orders", Event("a", 1), partition=0)
        deliveries = client.consume("shop/orders", group="billing", start="beginning")
        lost = await anext(deliveries)
        await gateway.stop()
        await until(lambda: lost.over)
        with pytest.raises(LocalProtocolError, match="the connection was lost"):
            await lost.ack()
        await gateway.start()
        async with await anext(deliveries) as again:
            assert [event.value for event in again.events] == [1]
    assert gateway.memory.cursors["shop/orders", "billing", 0] == 1


async def test_an_ack_without_an_answer_says_that_the_delivery_may_come_again(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.publish("shop/orders", Event("a", 1), partition=0)
        delivery = await anext(client.consume("shop/orders", group="billing", start="beginning"))
        gateway.memory.cursors = Stuck(gateway)
        with pytest.raises(TransportError, match="the connection was lost before the answer came") as raised:
            await delivery.ack()
    assert raised.value.code == "delivery-lost"


class Stuck(dict[Any, Any]):
    """Cursors whose change ends the connection."""

    def __init__(self, gateway: FakeGateway) -> None:
        super().__init__(gateway.memory.cursors)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise RuntimeError("the gateway dies here")


async def test_a_group_that_is_refused_for_good_raises(gateway: FakeGateway) -> None:
    gateway.token = "wst_1"
    async with client_of(gateway) as client:
        with pytest.raises(Exception, match="group billing of shop/orders: the token is not known"):
            await anext(client.consume("shop/orders", group="billing"))


async def test_a_transaction_is_written_with_the_ack(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.publish("shop/orders", Event("a", 1), partition=0)
        delivery = await anext(client.consume("shop/orders", group="billing", start="beginning"))
        async with delivery.transaction() as transaction:
            await transaction.publish("shop/paid", Event("paid", 1))
            assert gateway.memory.streams["shop/paid"] == [[], []]

        assert [(one.stream, len(one.places)) for one in transaction.written] == [("shop/paid", 1)]
        assert sum(map(len, gateway.memory.streams["shop/paid"])) == 1


async def test_a_rejected_statement_ends_the_delivery(gateway: FakeGateway) -> None:
    async with client_of(gateway) as client:
        await client.publish("shop/orders", Event("a", 1), partition=0)
        delivery = await anext(client.consume("shop/orders", group="billing", start="beginning"))
        with pytest.raises(PipelineError, match="was rejected: no stream shop/nowhere") as raised:
            async with delivery.transaction() as transaction:
                await transaction.publish("shop/nowhere", Event("paid", 1))
        await until(lambda: delivery.over)

    assert raised.value.code == "statement-rejected"
    assert gateway.memory.streams["shop/paid"] == [[], []]


@pytest.mark.parametrize(
    ("returned", "kept"),
    [
        (b"\x01", (b"\x01", "application/octet-stream")),
        ("paid", (b"paid", "text/plain; charset=utf-8")),
        ({"receipt": 7}, (b'{"receipt":7}', "application/json")),
        (None, (None, "")),
        (Output("x", content_type="text/csv"), (b"x", "text/csv")),
        (Output(streams={"shop/paid": Event("paid")}), (None, "")),
    ],
)
async def test_what_a_function_returns_is_the_output(gateway: FakeGateway, returned: Any, kept: Any) -> None:
    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a", 1))
    client, working = works_on(gateway, lambda work: returned)
    async with client:
        await until(lambda: gateway.memory.outputs)
        client.stop()
        await working

    assert gateway.memory.outputs == {("charge", 1): kept}
    wanted = 1 if isinstance(returned, Output) and returned.streams else 0
    assert sum(map(len, gateway.memory.streams["shop/paid"])) == wanted


async def test_a_function_has_the_event_and_the_outputs_of_other_stages(gateway: FakeGateway) -> None:
    event = Event("a", {"order": 3})
    gateway.memory.offer("shop/fulfil", "charge", 1, event, pay=(b'{"ok":true}', "application/json"))

    async def charge(work: StageWork) -> Any:
        assert work.root_event is not None
        return [work.root_event.value, work.outputs, work.instance, work.payloads["pay"][1]]

    client, working = works_on(gateway, charge)
    async with client:
        await until(lambda: gateway.memory.outputs)
    await working

    assert gateway.memory.outputs["charge", 1][0] == b'[{"order":3},{"pay":{"ok":true}},1,"application/json"]'


async def test_an_error_of_a_function_gives_the_work_back(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([ValueError("no"), Again("not yet", delay=2), TypeError("output"), StopIteration()])
    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a", 1))

    def charge(work: StageWork) -> Any:
        error = next(errors, None)
        if isinstance(error, TypeError):
            return object()
        if error:
            raise error
        return "done"

    with caplog.at_level(logging.WARNING, "wallaroo_spark.client"):
        client, working = works_on(gateway, charge)
        async with client:
            await until(lambda: gateway.memory.outputs)
        await working

    assert gateway.memory.nacks[:2] == [(0, "ValueError: no"), (2000, "not yet")]
    assert "an output is bytes, a str or a value that JSON can express" in gateway.memory.nacks[2][1]
    assert gateway.memory.nacks[3:] == [(0, "RuntimeError: StopIteration: ")]
    assert "instance 1 of partition 0> failed and is given back: ValueError: no" in caplog.text


async def test_a_delay_of_any_length_gives_the_work_back(gateway: FakeGateway) -> None:
    class Unready(Again):
        def __init__(self) -> None:
            """Without that of the class behind it."""

    errors = iter([Again("later", delay=1e300), Unready()])
    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a", 1))

    def charge(work: StageWork) -> str:
        if error := next(errors, None):
            raise error
        return "done"

    client, working = works_on(gateway, charge)
    async with client:
        await client.publish("shop/orders", Event("a", 1), partition=0)
        deliveries = client.consume("shop/orders", group="billing", start="beginning")
        await (await anext(deliveries)).nack(1e300)
        await until(lambda: gateway.memory.outputs)
    await working

    longest = 1 << 62
    assert sorted(gateway.memory.nacks) == [(0, "Unready: "), (longest, ""), (longest, "later")]


async def test_works_of_a_stage_run_at_the_same_time_up_to_its_concurrency(gateway: FakeGateway) -> None:
    running: set[int] = set()
    together = asyncio.Event()
    for instance in range(1, 6):
        gateway.memory.offer("shop/fulfil", "charge", instance, Event("a", instance))

    async def charge(work: StageWork) -> None:
        running.add(work.instance)
        assert len(running) <= 4
        if len(running) == 4:
            together.set()
        await together.wait()
        running.discard(work.instance)

    client, working = works_on(gateway, charge)
    async with client:
        await until(lambda: len(gateway.memory.outputs) == 5)
    await working


async def test_a_stage_worker_outlives_its_gateway(gateway: FakeGateway) -> None:
    client, working = works_on(gateway, lambda work: work.instance)
    async with client:
        await gateway.joined.wait()
        await gateway.stop()
        gateway.memory.offer("shop/fulfil", "charge", 1, Event("a"))
        await gateway.start()
        await until(lambda: gateway.memory.outputs)
    await working


async def test_functions_that_run_may_finish_at_the_end(gateway: FakeGateway) -> None:
    begun, finish = asyncio.Event(), asyncio.Event()
    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a"))

    async def charge(work: StageWork) -> str:
        begun.set()
        await finish.wait()
        return "done"

    client, working = works_on(gateway, charge)
    await begun.wait()
    client.stop()
    finish.set()
    await working
    await client.close()

    assert gateway.memory.outputs["charge", 1][0] == b"done"
