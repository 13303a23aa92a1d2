"""Publishing many events: with a gateway in memory that dies, and with a real one."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.client.fake_gateway import FakeGateway
from tests.gateway.memory import MemoryApplication, serving
from tests.gateway.shop import SHOP
from tests.waiting import SECONDS
from wallaroo_spark.api.limits import EVENT_BYTES
from wallaroo_spark.client import AsyncClient, Backoff, Client, Event, PublishedEvent, RefusedEvent
from wallaroo_spark.client.window import BulkWindow
from wallaroo_spark.errors import ArgumentTypeError, ConfigurationError, PipelineError, TransportError

SOON = Backoff(initial=0.01, maximum=0.05)
pytestmark = pytest.mark.timeout(SECONDS)


def numbered(count: int) -> Iterator[Event]:
    """Events whose ids are their numbers."""
    for number in range(count):
        yield Event("t", number, id=str(number))


async def published(
    client: AsyncClient, events: Any, found: list[PublishedEvent] | None = None, **more: Any
) -> list[PublishedEvent]:
    """All published events; they are in ``found`` also when an error comes behind them."""
    found = [] if found is None else found
    async for one in client.publish_many("shop/orders", events, **more):
        found.append(one)
    return found


async def test_many_events_have_their_places_in_their_order() -> None:
    application = MemoryApplication(SHOP)
    async with serving(application) as gateway, AsyncClient(gateway.address, retry=SOON) as client:
        found = await published(client, numbered(600), partition=1, batch=20)
        again = await published(client, numbered(10), partition=1)
        divided = await published(client, [Event("t", id="new"), Event("t", id="newer")], durability="received")
    application.close()

    assert [(one.index, one.event.id, one.place.offset) for one in found if one.place] == [
        (number, str(number), number + 1) for number in range(600)
    ]
    assert [one.place for one in again] == [one.place for one in found[:10]]
    assert [(one.index, one.place) for one in divided] == [(0, None), (1, None)]


async def test_no_event_is_lost_or_written_twice_when_gateways_die_meanwhile(gateway: FakeGateway) -> None:
    other = await FakeGateway(gateway.memory).start()
    found: list[PublishedEvent] = []
    gateway.lose_answers = other.lose_answers = 3
    async with AsyncClient([gateway.address, other.address], retry=SOON) as client:
        async for one in client.publish_many("shop/orders", numbered(600), partition=0, batch=5):
            found.append(one)
            if len(found) in (100, 400):
                await gateway.stop()
                await gateway.start()
            if len(found) == 250:
                await other.stop()
    await other.stop()

    assert [one.index for one in found] == list(range(600))
    assert [event.id for event in gateway.memory.streams["shop/orders"][0]] == [str(number) for number in range(600)]


async def test_refused_events_do_no_harm_to_the_others_and_are_named() -> None:
    application = MemoryApplication(SHOP)
    events: list[Any] = [*numbered(40)]
    events[7] = Event("t", id="x" * 5000)
    events[11] = "no event"
    events[13] = Event("t", b"x" * (EVENT_BYTES + 1))
    told: list[RefusedEvent] = []
    async with serving(application) as gateway, AsyncClient(gateway.address, retry=SOON) as client:
        found: list[PublishedEvent] = []
        with pytest.raises(PipelineError) as refused:
            await published(client, events, found, partition=0)
        await published(client, events, partition=0, on_refused=told.append)
    application.close()

    assert [one.index for one in found] == [number for number in range(40) if number not in (7, 11, 13)]
    assert refused.value.code == "events-refused"
    assert "3 of 40 events were refused" in str(refused.value)
    for place, reason in ((7, "id of 5000 characters"), (11, "write Event("), (13, f"{EVENT_BYTES} are permitted")):
        assert f"event {place}: " in str(refused.value)
        assert reason in str(refused.value)
    assert [one.index for one in told] == [7, 11, 13]


async def test_any_number_of_events_in_a_row_may_be_refused(gateway: FakeGateway) -> None:
    events: list[Any] = ["no event"] * 20_001
    told: list[RefusedEvent] = []
    async with AsyncClient(gateway.address, retry=SOON) as client:
        assert await published(client, events, on_refused=told.append) == []
    with await asyncio.to_thread(Client, gateway.address, retry=SOON) as blocking:
        found = blocking.publish_many("shop/orders", events, on_refused=told.append)
        assert await asyncio.to_thread(list, found) == []

    assert len(told) == 2 * len(events)


async def test_an_error_of_the_iterable_comes_after_the_events_before_it(gateway: FakeGateway) -> None:
    async def events() -> AsyncIterator[Event]:
        for event in numbered(5):
            yield event
        raise OSError("the file is damaged")

    found: list[PublishedEvent] = []
    async with AsyncClient(gateway.address, retry=SOON) as client:
        with pytest.raises(OSError, match="the file is damaged"):
            await published(client, events(), found)

    assert [one.index for one in found] == list(range(5))


async def test_an_error_of_this_program_ends_the_call_at_once(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(window: BulkWindow) -> Any:
        raise RuntimeError("no request")

    monkeypatch.setattr(BulkWindow, "next_request", broken)
    async with AsyncClient(gateway.address, retry=SOON) as client:
        with pytest.raises(PipelineError, match="RuntimeError: no request; report it"):
            await published(client, numbered(1))


async def test_memory_is_bounded_while_nothing_is_answered(gateway: FakeGateway) -> None:
    pulled = 0

    def events() -> Iterator[Event]:
        nonlocal pulled
        for event in numbered(100_000):
            pulled += 1
            yield event

    gateway.silent = True
    async with AsyncClient(gateway.address, retry=SOON) as client:
        with pytest.raises(TransportError, match="no answer came") as late:
            await published(client, events(), timeout=2)

    assert late.value.code == "request-late"
    assert "those from number 0 on may be published or not" in str(late.value)
    assert pulled <= 20_001


async def test_what_cannot_work_is_said_at_once(gateway: FakeGateway) -> None:
    gateway.token = "secret"
    async with AsyncClient(gateway.address, retry=SOON) as client:
        with pytest.raises(ArgumentTypeError, match="events is an iterable of Event"):
            client.publish_many("shop/orders", Event("t"))  # type: ignore[arg-type]  # the mistake
        with pytest.raises(ConfigurationError, match="the token is not known"):
            await published(client, numbered(10))
        assert await published(client, ()) == []


async def test_an_error_is_raised_without_the_frames_of_the_loop(gateway: FakeGateway) -> None:
    with await asyncio.to_thread(Client, gateway.address, retry=SOON) as client:
        with pytest.raises(PipelineError) as raised:
            await asyncio.to_thread(lambda: list(client.publish_many("shop/unknown", numbered(1))))
        await asyncio.to_thread(client.close)

    assert "_connection" not in "".join(traceback.format_exception(raised.value))


async def test_threads_may_publish_many_with_one_blocking_client(gateway: FakeGateway) -> None:
    def publish(client: Client, stream: str) -> list[int]:
        return [one.index for one in client.publish_many(stream, numbered(500), batch=20)]

    with await asyncio.to_thread(Client, gateway.address, retry=SOON) as client:
        found = await asyncio.gather(
            *(asyncio.to_thread(publish, client, stream) for stream in ("shop/orders", "shop/paid"))
        )
        left = client.publish_many("shop/orders", numbered(500))
        assert (await asyncio.to_thread(next, left)).index == 0
        await asyncio.to_thread(left.close)  # type: ignore[attr-defined]  # it is a generator
        await asyncio.to_thread(client.close)

    assert found == [list(range(500)), list(range(500))]
