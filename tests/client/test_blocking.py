"""The blocking client, whole programs of stages, and arguments that are refused."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import pytest

from tests import evil_values as evil
from tests.client.fake_gateway import FakeGateway
from tests.client.test_client import SOON
from tests.waiting import SECONDS, until
from wallaroo_spark.client import Client, Event, run_stages, stage
from wallaroo_spark.errors import ConfigurationError, LocalProtocolError

PROGRAM = """
import sys
from wallaroo_spark.client import Backoff, run_stages, stage

@stage("shop/fulfil", "charge")
def charge(work):
    return work.root_event.value

run_stages(charge, address=sys.argv[1], retry=Backoff(initial=0.05))
"""


async def test_all_of_it_without_await(gateway: FakeGateway) -> None:
    def script() -> list[Any]:
        found: list[Any] = []
        with Client(gateway.address, retry=SOON) as client:
            client.publish("shop/orders", Event("a", 1), Event("a", 2), partition=0)
            with client.consume("shop/orders", group="g", start="beginning", max_events=1) as deliveries:
                with next(deliveries) as delivery:
                    found += [event.value for event in delivery.events]
                with next(deliveries).transaction() as transaction:
                    transaction.publish("shop/paid", Event("paid", 2))
                found.append([one.stream for one in transaction.written])
            with client.stage("shop/fulfil", "charge") as works:
                work = next(works)
                work.ack(work.instance)
            found.append(client.describe().version)
        with pytest.raises(LocalProtocolError, match="the client is closed"):
            client.publish("shop/orders", Event("a"))
        return found

    gateway.memory.offer("shop/fulfil", "charge", 17, Event("a"))

    assert await asyncio.to_thread(script) == [1, ["shop/paid"], 3]
    assert gateway.memory.cursors["shop/orders", "g", 0] == 2
    assert gateway.memory.outputs == {("charge", 17): (b"17", "application/json")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_program_of_stages_ends_in_one_line(gateway: FakeGateway, number: signal.Signals) -> None:
    gateway.memory.offer("shop/fulfil", "charge", 1, Event("a", "paid"))
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, gateway.address, stderr=asyncio.subprocess.PIPE
    )
    await until(lambda: gateway.memory.outputs or program.returncode is not None)
    program.send_signal(number)
    _, said = await asyncio.wait_for(program.communicate(), SECONDS)

    assert gateway.memory.outputs == {("charge", 1): (b"paid", "text/plain; charset=utf-8")}
    assert said.decode().splitlines() == [f"{number.name}: finishing; once more ends at once."]
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "neither address nor registry is given"),
        ({"address": "a:1", "registry": "redis://r", "application": "x"}, "both address and registry are given"),
        ({"registry": "redis://r"}, "registry and application belong together"),
        ({"address": "a"}, "address 'a' has no port"),
        ({"address": 7}, "setting address: 7 is not a str or a list of str"),
        ({"address": "a:1", "source": ""}, "source is empty"),
        ({"address": "a:1", "source": evil.LONE}, "source '.*' has a lone surrogate"),
        ({"address": "a:1", "token": "wst_\u00fc"}, "the token has a character that is not printable ASCII"),
        ({"address": "a:1", "token": "wst_1\nwst_2"}, "the token has a character that is not printable ASCII"),
        ({"address": "a:1", "key": "k.pem"}, "TLS key k.pem has no certificate"),
        ({"address": "a:1", "retry": 3}, "setting retry: 3 is not a Backoff"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Client(**settings)


def test_arguments_that_cannot_work_are_refused_before_anything_is_sent() -> None:
    with Client("localhost:1") as client:
        for wrong, said in (
            (lambda: client.publish("shop/orders"), "there is no event to publish"),
            (lambda: client.publish("orders", Event("a")), "stream 'orders': namespace/name, for example shop/orders"),
            (lambda: client.publish(7, Event("a")), "the name of a stream is a str, and this one is int: 7"),  # type: ignore[arg-type]  # the mistake
            (lambda: client.publish("shop/orders", {"a": 1}), "an event is an Event, and this one is dict"),  # type: ignore[arg-type]  # the mistake
            (lambda: client.publish("shop/orders", Event("a"), partition=-1), "partition is -1; give 0 or more"),
            (
                lambda: client.publish("shop/orders", Event("a"), durability="no"),
                "durability is 'no'; give 'committed'",
            ),
            (lambda: client.publish("shop/orders", Event("a"), key=b"x"), "key is a str, and this one is bytes"),  # type: ignore[arg-type]  # the mistake
            (lambda: client.publish("shop/orders", Event("a"), key=evil.LONE), "key '.*' has a lone surrogate"),
            (lambda: client.publish("shop/orders", Event("a"), delay=-1), "delay is -1 seconds; give 0 or more"),
            (lambda: client.consume("shop/orders", start=1 << 63), "start is the offset 9223372036854775808; offsets"),
            (lambda: client.consume("shop/orders", group="a b"), "group 'a b': use 1 to 100 letters"),
            (lambda: client.consume("shop/orders", start="first"), "start is 'first'; give 'latest' or 'beginning'"),
            (lambda: client.consume("shop/orders", max_events=0), "max_events is 0; give 1 or more"),
            (lambda: client.stage("shop/fulfil", "charge", concurrency=0), "concurrency is 0; give 1 or more"),
            (client.work, r"there is no stage to work on"),
            (lambda: client.work(print), "a stage is a function with @stage"),  # type: ignore[arg-type]  # the mistake
            (lambda: run_stages(address="a:1"), "there is no stage to work on"),
            (lambda: stage("fulfil", "charge"), "pipeline 'fulfil': namespace/name"),
            (lambda: stage("shop/fulfil", "charge")(7), "function is a function, and this one is int"),  # type: ignore[arg-type]  # the mistake
            (lambda: client.cancel("shop/fulfil", 0, 0), "instance is 0; give 1 or more"),
            (lambda: client.take_away("shop/fulfil", 0, 1 << 63), "instance is 9223372036854775808; give 1 or more"),
            (lambda: client.take_away("shop/fulfil", 0, 1, evil.LONE), "stage '.*': use 1 to 100 letters"),
        ):
            with pytest.raises((ConfigurationError, LocalProtocolError), match=said):
                wrong()
