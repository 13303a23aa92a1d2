"""A subscriber over real sockets, against publishers that are the real state machine with rows in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.pems import Pems
from tests.pubsub.subscribing.scripted import COOKIE, Catalog, Place, Publisher, Record, numbers, rows
from tests.waiting import SECONDS, eventually, until
from wallaroo_spark.errors import ConfigurationError, PubSubError, RegistryError, RemoteProtocolError
from wallaroo_spark.pubsub.messages import Data, Snapshot, Why, encode, pack_rows
from wallaroo_spark.pubsub.publishing.publication import BatchPart
from wallaroo_spark.pubsub.subscribing import partition_link, subscriber
from wallaroo_spark.pubsub.subscribing.settings import SubscriptionSettings
from wallaroo_spark.pubsub.subscribing.subscription import Subscription, subscribe
from wallaroo_spark.pubsub.times import Epoch, Frontier, Lost, Position
from wallaroo_spark.transport import ByteStream, server_context


@pytest.fixture
def catalog() -> Catalog:
    return Catalog({"totals": Record(1)})


@pytest.fixture
def two() -> Catalog:
    return Catalog({"totals": Record(2)})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # A slow machine is no failure: no attempt ends before the publisher has answered.
    monkeypatch.setattr(partition_link, "CONNECT_SECONDS", SECONDS)
    monkeypatch.setattr(partition_link, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(partition_link, "LONGEST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(subscriber, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(subscriber, "FIND_SECONDS", 0.02)


def following(catalog: Catalog, **settings: Any) -> Subscription:
    given: dict[str, Any] = {"cookie": COOKIE, "lost_after": 30.0} | settings
    return subscribe("totals", registry=catalog, **given)


async def frontier_at(items: AsyncIterator[Any], time: Any) -> list[Any]:
    """The items up to the one with which the frontier comes to a time."""
    found = []
    async with asyncio.timeout(SECONDS):
        async for item in items:
            found.append((item.epoch, numbers(item.batch)) if isinstance(item, Epoch) else item.frontier)
            if found[-1] == (time,):
                return found
    raise AssertionError(f"it ended with {found}")


async def test_epochs_come_whole_and_in_order_of_their_partitions(two: Catalog) -> None:
    first, second = await Publisher(two, 0).start(), await Publisher(two, 1).start()
    async with following(two) as topic:
        assert await anext(topic) == Frontier((0,), ((0, 1),))
        second.commit(0, [3], [4])
        second.commit(1, [5])
        first.commit(0, [1, 2])
        first.commit(1)

        assert await frontier_at(topic, 2) == [(0, [1, 2]), (0, [3]), (0, [4]), (1,), (1, [5]), (2,)]
        assert topic.position == Position("history", 2)
    await until(lambda: first.subscribers == second.subscribers == 0)


async def test_epochs_that_had_begun_are_not_delivered(two: Catalog) -> None:
    first, second = await Publisher(two, 0).start(), await Publisher(two, 1).start()
    first.commit(0, [1])
    async with following(two) as topic:
        assert await anext(topic) == Frontier((0,), ((0, 1),))
        second.commit(0, [2])
        for publisher in (first, second):
            publisher.commit(1, [3])

        assert await frontier_at(topic, 2) == [(1,), (1, [3]), (1, [3]), (2,)]


async def test_without_atomicity_rows_come_at_once(two: Catalog) -> None:
    first, second = await Publisher(two, 0).start(), await Publisher(two, 1).start()
    first.commit(0, [1])
    async with following(two, atomic=False) as topic:
        await anext(topic)
        second.commit(0, [2])

        item = await anext(topic)
        assert isinstance(item, Epoch)
        assert (item.epoch, item.partition, numbers(item.batch)) == (0, 1, [2])
        with pytest.raises(ConfigurationError, match="atomic=False asks for parts"):
            next(topic.epochs())


async def test_pairs_and_a_coarser_filter() -> None:
    catalog = Catalog({"totals": Record(1, product=True)})
    publisher = await Publisher(catalog).start()
    async with following(catalog, beyond=(1, 1)) as topic:
        assert await anext(topic) == Frontier(((0, 0),), (((0, 0), 1),))
        publisher.commit(0, [1], [2], times=[(0, 1), (0, 2)])
        publisher.commit(1, [3], times=[(1, 0)])

        assert await frontier_at(topic, (2, 0)) == [((0, 2), [2]), ((1, 0),), ((2, 0),)]
    with pytest.raises(ConfigurationError, match=r"option beyond: topic 'totals' has times like \(0, 0\), and 3 is"):
        await anext(following(catalog, beyond=3))


async def test_a_connection_that_breaks_is_made_again_and_nothing_is_missing(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    lost: list[Lost] = []
    async with following(catalog, on_lost=lost.append) as topic:
        await anext(topic)
        publisher.commit(0, [1])
        assert await frontier_at(topic, 1) == [(0, [1]), (1,)]
        publisher.cut()
        await until(lambda: lost)
        publisher.commit(1, [2])

        assert await frontier_at(topic, 2) == [(1, [2]), (2,)]
    assert [hello.resume for hello in publisher.hellos] == [(), (1,)]
    assert publisher.hellos[1].identity == "history"
    assert (lost[0].partition, lost[0].address) == (0, catalog.places[0].address)


async def test_a_publisher_in_another_place_goes_on(two: Catalog) -> None:
    first, second = await Publisher(two, 0).start(), await Publisher(two, 1).start()
    async with following(two) as topic:
        await anext(topic)
        for publisher in (first, second):
            publisher.commit(0, [1])
        await frontier_at(topic, 1)
        second.commit(1, [8])
        await first.stop()
        other = Publisher(two, 0)
        for batch in range(2):
            other.commit(batch, [batch])
        await other.start()

        assert await frontier_at(topic, 2) == [(1, [1]), (1, [8]), (2,)]


async def test_a_publisher_that_hangs_is_left_for_the_one_that_took_its_place(catalog: Catalog) -> None:
    hanging = await Publisher(catalog).start()
    async with following(catalog) as topic:
        await anext(topic)
        other = await Publisher(catalog).start()
        other.commit(0, [1])

        assert await frontier_at(topic, 1) == [(0, [1]), (1,)]
    await until(lambda: hanging.subscribers == 0)


async def test_a_partition_that_stays_away_is_said_to_be_lost(two: Catalog) -> None:
    first, second = await Publisher(two, 0).start(), await Publisher(two, 1).start()
    address = two.places[1].address
    async with following(two, lost_after=0.2) as topic:
        await anext(topic)
        await second.stop()
        with pytest.raises(PubSubError, match=f"'totals', partition 1, last at {address}, is lost") as caught:
            await anext(topic)
        assert caught.value.fields["partition"] == 1
        with pytest.raises(StopAsyncIteration):
            await anext(topic)
    await until(lambda: first.subscribers == 0)


async def test_a_publisher_that_only_ever_says_later_is_lost_too(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    publisher.end(Why.LATER)
    async with following(catalog) as topic:
        waiting = asyncio.ensure_future(anext(topic))
        await until(lambda: len(publisher.hellos) > 1)
        assert not waiting.done()
        waiting.cancel()
    with pytest.raises(PubSubError, match=r"is lost: it made no progress .* the test says so"):
        await anext(following(catalog, lost_after=0.2))


async def test_a_partition_that_nobody_ever_served_is_said_to_be_lost(catalog: Catalog) -> None:
    with pytest.raises(PubSubError, match=r"which was never reached, is lost.*no publisher serves it"):
        await anext(following(catalog, lost_after=0.1))


async def test_a_lost_registry_does_not_affect_connected_sessions(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    async with following(catalog) as topic:
        await anext(topic)
        catalog.away = True
        asked = catalog.asked
        await until(lambda: catalog.asked > asked + 2)
        publisher.commit(0, [1])
        assert await frontier_at(topic, 1) == [(0, [1]), (1,)]
        publisher.cut()
        await until(lambda: not publisher.subscribers)
        catalog.away = False
        publisher.commit(1, [2])
        assert await frontier_at(topic, 2) == [(1, [2]), (2,)]


async def test_an_unfinished_epoch_is_read_again_from_its_beginning(catalog: Catalog) -> None:
    halves: list[ByteStream] = []

    async def half(stream: ByteStream) -> None:
        await stream.read()
        halves.append(stream)
        stream.write(encode(Snapshot((0,), ())))
        stream.write(encode(Data(0, pack_rows(rows(1)))))
        await stream.drain()

    broken = await Publisher(catalog).start(half)
    async with following(catalog) as topic:
        await anext(topic)
        await until(lambda: halves)
        await broken.stop()
        publisher = Publisher(catalog)
        publisher.commit(0, [1], [2])
        await publisher.start()

        assert await frontier_at(topic, 1) == [(0, [1]), (0, [2]), (1,)]


@pytest.mark.parametrize(
    "junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", encode(Data(0, b"")), b"\0\0\0\x07\x92\x07\x90    "]
)
async def test_a_peer_of_another_protocol_is_not_a_publisher(catalog: Catalog, junk: bytes) -> None:
    async def talk(stream: ByteStream) -> None:
        stream.write(junk)
        await stream.read()

    await Publisher(catalog).start(talk)
    with pytest.raises(PubSubError, match="broke the protocol"):
        await anext(following(catalog, lost_after=0.1))


async def test_a_message_may_not_be_longer_than_is_accepted(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    async with following(catalog, max_message_bytes=1000, lost_after=0.1) as topic:
        await anext(topic)
        publisher.commit(0, range(1000))
        with pytest.raises(PubSubError, match="bytes is announced; 1000 are accepted"):
            await anext(topic)


async def test_rows_that_cannot_be_read_are_named(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    async with following(catalog) as topic:
        await anext(topic)
        publisher.machine.committed(0, [BatchPart((0,), 1, Data(0, b"\xc4\x01x"))])
        publisher.commit(1)
        with pytest.raises(RemoteProtocolError, match="not an Arrow IPC stream"):
            await anext(topic)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cookie": "wrong"}, "the cookie is not the one of this topic"),
        ({"resume": Position("another", 0)}, "has a new history"),
        ({"resume": Position("history", 0)}, "retains the batches from 3 on"),
        ({"resume": Position("history", (0, 0))}, "has times like 0"),
    ],
)
async def test_a_refusal_of_a_publisher_is_raised_at_once(catalog: Catalog, settings: Any, says: str) -> None:
    publisher = await Publisher(catalog, retain=2).start()
    for batch in range(5):
        publisher.commit(batch)
    with pytest.raises((PubSubError, ConfigurationError), match=says) as caught:
        await anext(following(catalog, **settings))
    assert "wrong" not in str(caught.value)
    assert len(publisher.hellos) <= 1


async def test_a_subscription_goes_on_from_a_position(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    for batch in range(3):
        publisher.commit(batch, [batch])
    async with following(catalog, resume=Position("history", 1)) as topic:
        assert await frontier_at(topic, 3) == [(1,), (1, [1]), (2,), (2, [2]), (3,)]


async def test_a_slow_subscriber_is_told_why_it_is_cut_off(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = await Publisher(catalog, max_subscriber_bytes=1000).start()
    async with following(catalog) as slow, following(catalog) as quick:
        await anext(slow)
        await anext(quick)
        stalled = publisher.machine.take
        sessions = list(publisher._streams)
        monkeypatch.setattr(
            publisher.machine, "take", lambda session: None if session == sessions[0] else stalled(session)
        )
        for batch in range(30):
            publisher.commit(batch, list(range(100)))
            await frontier_at(quick, batch + 1)
        monkeypatch.setattr(publisher.machine, "take", stalled)
        publisher.commit(30)

        with pytest.raises(PubSubError, match="is too slow") as caught:
            await frontier_at(slow, 99)
        assert caught.value.fields["why"] == Why.SLOW
        assert await frontier_at(quick, 31) == [(31,)]


async def test_an_application_that_takes_nothing_is_sent_no_more_than_it_may_hold(catalog: Catalog) -> None:
    publisher = await Publisher(catalog).start()
    settings = SubscriptionSettings("totals", registry=catalog, cookie=COOKIE)
    core = subscriber.Subscriber(catalog, settings, max_waiting_bytes=5000)
    await core.open()
    try:
        assert isinstance(await core.next(), Frontier)
        for batch in range(40):
            publisher.commit(batch, list(range(50_000)))
        await until(lambda: core._waiting > 5000)
        assert core._waiting < 4 * 400_000 + 400_000
        assert len(core._items) < 40
        found = 0
        while found < 40:
            found += isinstance(await core.next(), Epoch)
    finally:
        await core.close()


async def test_frontiers_are_not_read_without_end_either(catalog: Catalog) -> None:
    publisher = await Publisher(catalog, retain=10_000).start()
    core = subscriber.Subscriber(
        catalog,
        SubscriptionSettings("totals", registry=catalog, cookie=COOKIE),
        max_waiting_bytes=20 * subscriber.ITEM_BYTES,
    )
    await core.open()
    try:
        assert isinstance(await core.next(), Frontier)
        for batch in range(21):
            publisher.commit(batch)
            await until(lambda batch=batch: core.frontier == (batch + 1,))
        for batch in range(21, 200):
            publisher.commit(batch)
        (follower,) = publisher.machine._subscribers.values()
        await until(lambda: follower.batch == 200)
        assert len(core._items) == 21
        taken = 0
        while core.position != Position("history", 200):
            assert isinstance(await core.next(), Frontier)
            taken += 1
        assert taken == 200
    finally:
        await core.close()


async def test_an_iteration_ends_with_the_topic(two: Catalog) -> None:
    publishers = [await Publisher(two, number).start() for number in range(2)]
    topic = following(two)
    await anext(topic)
    for publisher in publishers:
        publisher.commit(0, [1])
        publisher.end()

    assert [numbers(item.batch) async for item in topic if isinstance(item, Epoch)] == [[1], [1]]
    await until(lambda: not any(publisher.subscribers for publisher in publishers))


async def test_a_topic_that_ended_may_be_waited_for(catalog: Catalog) -> None:
    first = await Publisher(catalog).start()
    async with following(catalog, reopen=True) as topic:
        await anext(topic)
        first.commit(0, [1])
        first.end()
        await frontier_at(topic, 1)
        await first.stop()
        second = Publisher(catalog)
        second.machine.begin(0)
        second.commit(1, [2])
        await second.start()

        assert await frontier_at(topic, 2) == [(1, [2]), (2,)]


async def test_a_topic_that_is_not_there_is_waited_for_as_long_as_is_said(catalog: Catalog) -> None:
    record = catalog.records.pop("totals")
    with pytest.raises(PubSubError, match=r"topic 'totals' has no publisher .* after 0.05 seconds; check the name"):
        await anext(following(catalog, wait=0.05))
    topic = following(catalog, wait=30)
    first = asyncio.ensure_future(anext(topic))
    asked = catalog.asked
    await until(lambda: catalog.asked > asked + 1)
    catalog.records["totals"] = record
    await Publisher(catalog).start()

    assert await first == Frontier((0,), ((0, 1),))
    await topic.aclose()


async def test_a_registry_that_is_away_at_first_is_said_to_be(catalog: Catalog) -> None:
    catalog.away = True
    with pytest.raises(RegistryError):
        await anext(following(catalog))


async def test_over_tls_the_publisher_must_have_the_right_certificate(catalog: Catalog, pems: Pems) -> None:
    publisher = await Publisher(catalog, tls=server_context(pems.server, pems.server_key, pems.ca)).start()
    mine = {"tls_ca": pems.ca, "tls_certificate": pems.client, "tls_key": pems.client_key}
    async with following(catalog, **mine) as topic:
        await anext(topic)
        publisher.commit(0, [1])
        assert await frontier_at(topic, 1) == [(0, [1]), (1,)]
    for other in ({"tls_ca": pems.other_ca}, {"tls": True}, {}):
        with pytest.raises(PubSubError, match="is lost"):
            await anext(following(catalog, lost_after=0.1, **other))


@pytest.fixture
def stage_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for publishers in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_plain_loop_follows_a_topic_and_can_be_closed(
    catalog: Catalog, stage_loop: asyncio.AbstractEventLoop
) -> None:
    publisher = asyncio.run_coroutine_threadsafe(Publisher(catalog).start(), stage_loop).result(SECONDS)
    with following(catalog) as topic:
        assert next(topic) == Frontier((0,), ((0, 1),))
        for batch, lists in enumerate([([1], [2]), (), ([3],)]):
            stage_loop.call_soon_threadsafe(publisher.commit, batch, *lists)
        epochs = topic.epochs()
        found = [(time, table.column("n").to_pylist()) for time, table in (next(epochs), next(epochs))]
        assert found == [(0, [1, 2]), (2, [3])]
        closing = threading.Timer(0.01, topic.close)
        closing.start()
        assert [item for item in topic if isinstance(item, Epoch)] == []
        closing.join()
        with pytest.raises(StopIteration):
            next(topic)
    with pytest.raises(ConfigurationError, match="is closed"), topic:
        pass
    with pytest.raises(PubSubError, match="not the one"):
        next(following(catalog, cookie="wrong"))
    asyncio.run_coroutine_threadsafe(publisher.stop(), stage_loop).result(SECONDS)


def test_a_subscription_without_references_leaves_nothing_behind(stage_loop: asyncio.AbstractEventLoop) -> None:
    catalog = Catalog({"totals": Record(1)})
    publisher = asyncio.run_coroutine_threadsafe(Publisher(catalog).start(), stage_loop).result(SECONDS)
    before = set(threading.enumerate())
    for _ in following(catalog):
        break
    gc.collect()

    eventually(lambda: not publisher.subscribers)
    eventually(lambda: not any(thread.name == "wallaroo-subscriber" for thread in set(threading.enumerate()) - before))
    asyncio.run_coroutine_threadsafe(publisher.stop(), stage_loop).result(SECONDS)


def test_a_subscription_may_be_closed_at_any_moment(stage_loop: asyncio.AbstractEventLoop) -> None:
    catalog = Catalog({"totals": Record(1)})
    publisher = asyncio.run_coroutine_threadsafe(Publisher(catalog).start(), stage_loop).result(SECONDS)
    for number in range(30):
        topic = following(catalog)
        next(topic)
        closing = threading.Thread(target=topic.close)
        if number % 2:
            stage_loop.call_soon_threadsafe(publisher.commit, number, [1])
        closing.start()
        for _ in topic:
            pass
        closing.join(SECONDS)
        assert not closing.is_alive()
    asyncio.run_coroutine_threadsafe(publisher.stop(), stage_loop).result(SECONDS)


def test_a_subscription_may_be_closed_by_its_own_callback() -> None:
    catalog, found = Catalog({"totals": Record(1)}), []

    def give_up(lost: Lost) -> None:
        found.append(lost)
        topic.close()

    topic = following(catalog, on_lost=give_up)
    assert list(topic) == []
    assert found


def test_invalid_arguments_are_refused_at_once(catalog: Catalog) -> None:
    with pytest.raises(ConfigurationError, match="option wait: -1 is not 0 or more"):
        following(catalog, wait=-1)
    with pytest.raises(ConfigurationError, match="TLS authority"):
        following(catalog, tls_ca="/nowhere.pem")
    with pytest.raises(PubSubError, match="the time"):
        following(catalog, beyond=1.5)
    catalog.places[0] = Place("nonsense")
    with pytest.raises(PubSubError, match="has no port"):
        next(following(catalog, lost_after=0))
