"""A topic as a source: its references are the same each time, and it continues after the last acknowledged one."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.pubsub.subscribing.scripted import COOKIE, Catalog, Publisher, Record
from tests.waiting import SECONDS, until
from wallaroo_spark.connector import Record as SourceRecord
from wallaroo_spark.errors import ConfigurationError, PubSubError, ReplayError
from wallaroo_spark.pubsub.subscribing import partition_link
from wallaroo_spark.pubsub.subscribing.topic_source import INDEX_BITS, ReferenceCounter, TopicSource, row_as_json
from wallaroo_spark.pubsub.topic_catalog import ServedPartition, TopicCatalog, TopicRecord
from wallaroo_spark.registry import EmbeddedRedis


@pytest.fixture
def catalog() -> Catalog:
    return Catalog({"totals": Record(2)})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_link, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(partition_link, "LONGEST_PAUSE_SECONDS", 0.05)


def source(catalog: Catalog, **settings: Any) -> TopicSource:
    return TopicSource("totals", registry=catalog, cookie=COOKIE, lost_after=SECONDS, **settings)


def records_of(records: AsyncIterator[SourceRecord]) -> aclosing[AsyncGenerator[SourceRecord, None]]:
    """The records of a source, whose generator is closed at the end."""
    assert isinstance(records, AsyncGenerator)
    return aclosing(records)


async def both(catalog: Catalog, **settings: Any) -> list[Publisher]:
    return [await Publisher(catalog, partition, **settings).start() for partition in range(2)]


def publish(publishers: list[Publisher], batch: int) -> None:
    """Rows 0 and 1 in one message, 2 in another, 3 and 4 at the second publisher, each added to 10 × batch."""
    first, second = publishers
    first.commit(batch, [10 * batch, 10 * batch + 1], [10 * batch + 2])
    second.commit(batch, [10 * batch + 3, 10 * batch + 4])


async def take(source: TopicSource, after: int | None, count: int, doing: Any = None) -> list[tuple[int, Any]]:
    """So many records as (reference, number), batch and place in the reference set apart by a dot."""
    found = []
    async with asyncio.timeout(SECONDS), records_of(source.read(after)) as records:
        reading = asyncio.ensure_future(anext(records))
        if doing is not None:
            await doing()
        for number in range(count):
            record = await reading
            assert record.id is not None
            found.append((record.id, json.loads(record.payload)["n"]))
            if number + 1 < count:
                reading = asyncio.ensure_future(anext(records))
    return found


def at(batch: int, place: int) -> int:
    return batch << INDEX_BITS | place


async def test_rows_have_references_in_an_order_that_stays(catalog: Catalog) -> None:
    publishers = await both(catalog)
    for batch in range(3):
        publish(publishers, batch)

    whole = await take(source(catalog), at(0, 2), 10)

    assert whole[:3] == [(at(0, 3), 3), (at(0, 4), 4), (at(1, 0), 10)]
    assert [number for _, number in whole] == [3, 4, 10, 11, 12, 13, 14, 20, 21, 22]
    for reference, _ in whole[:-1]:
        behind = [item for item in whole if item[0] > reference]
        assert await take(source(catalog), reference, len(behind)) == behind


async def test_a_first_reading_begins_with_the_next_epoch_and_so_does_the_one_after_it(catalog: Catalog) -> None:
    publishers = await both(catalog)
    publish(publishers, 0)
    made = source(catalog)

    async def wait_and_publish() -> None:
        await until(lambda: all(publisher.subscribers for publisher in publishers))
        publish(publishers, 1)

    first = await take(made, None, 3, wait_and_publish)
    publish(publishers, 2)

    assert first == [(at(1, 0), 10), (at(1, 1), 11), (at(1, 2), 12)]
    assert (await take(made, None, 6))[:3] == first
    assert made.name == "topic:totals:history"
    assert made.replayable


async def test_in_product_time_a_batch_that_had_begun_is_left_out_whole() -> None:
    catalog = Catalog({"totals": Record(2, product=True)})
    first, second = await both(catalog)
    first.commit(0, [1], times=[(0, 3)])
    made = source(catalog)

    async def commit() -> None:
        await until(lambda: first.subscribers and second.subscribers)
        second.commit(0, [2], times=[(0, 5)])
        first.commit(1, [4], [3], times=[(1, 2), (1, 0)])
        second.commit(1, [5], times=[(1, 1)])

    expected = [(at(1, 0), 3), (at(1, 1), 5), (at(1, 2), 4)]
    assert await take(made, None, 3, commit) == expected
    assert await take(source(catalog), at(0, 0), 4) == [(at(0, 1), 2), *expected]


async def test_batches_that_are_no_longer_retained_cannot_be_replayed(catalog: Catalog) -> None:
    publishers = await both(catalog, retain=2)
    for batch in range(5):
        publish(publishers, batch)

    with pytest.raises(ReplayError, match=r"cannot be read behind reference .* retains the batches from 3 on"):
        await take(source(catalog), at(1, 0), 1)


async def test_a_source_that_was_cut_off_as_slow_goes_on_where_it_was(catalog: Catalog) -> None:
    publishers = await both(catalog)
    for batch in range(2):
        publish(publishers, batch)
    found = []
    async with asyncio.timeout(SECONDS), records_of(source(catalog).read(at(0, 0))) as records:
        async for record in records:
            found.append(json.loads(record.payload)["n"])
            if len(found) == 2:
                publishers[0].cut_off()
            if len(found) == 4:
                publish(publishers, 2)
            if len(found) == 14:
                break
    assert found == [1, 2, 3, 4, 10, 11, 12, 13, 14, 20, 21, 22, 23, 24]
    assert len(publishers[0].hellos) == 2


async def test_rows_may_go_as_arrow(catalog: Catalog) -> None:
    publish(await both(catalog), 0)
    async with asyncio.timeout(SECONDS), records_of(source(catalog, value="arrow").read(at(0, 0))) as records:
        found = [await anext(records) for _ in range(2)]

    assert [record.id for record in found] == [at(0, 1), at(0, 2)]
    assert pa.ipc.open_stream(found[1].payload).read_all().to_pydict() == {"n": [3, 4]}
    assert (found[0].key, found[0].event_time) == (None, None)


async def test_a_topic_that_ends_may_end_the_source(catalog: Catalog) -> None:
    publishers = await both(catalog)
    publish(publishers, 0)
    async with asyncio.timeout(SECONDS), records_of(source(catalog, reopen=False).read(at(0, 3))) as records:
        assert (await anext(records)).id == at(0, 4)
        for publisher in publishers:
            publisher.end()
        assert [record async for record in records] == []


async def test_a_redis_that_is_gone_is_logged_once_with_how_long_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with EmbeddedRedis() as redis:

        class Leaving(TopicCatalog):
            """It goes once the topic is found, so that each failure of the subscriber is of Redis."""

            def served(self, name: str) -> dict[int, ServedPartition]:
                redis.stop()
                return super().served(name)

        topics = Leaving(redis.url)
        topics.announce(TopicRecord("totals", 1, "history", False, b"", "a query"))
        endless = TopicSource("totals", registry=topics, cookie=COOKIE, lost_after=2.0, reopen=False)
        records = endless.read(None)
        reading = asyncio.ensure_future(anext(records))
        async with asyncio.timeout(SECONDS):
            with pytest.raises(PubSubError, match=r"Redis at .* cannot be reached .* in 5 attempts"):
                await reading

    failed = [record for record in caplog.records if record.name == "wallaroo_spark.registry.connection"]
    lost = [
        record.getMessage() for record in caplog.records if "Redis at" in record.getMessage() and "lost" in record.msg
    ]
    assert [record.levelname for record in failed] == ["WARNING"]
    assert len(lost) == 1
    assert "is lost; retrying for 2 seconds: Redis at" in lost[0]


def test_invalid_arguments_are_refused_at_once(catalog: Catalog) -> None:
    with pytest.raises(ConfigurationError, match="option value: 'csv' is not one of json, arrow"):
        source(catalog, value="csv")
    with pytest.raises(TypeError, match=r"TopicSource\(\) has no setting 'atomic'"):
        source(catalog, atomic=False)
    with pytest.raises(PubSubError, match="topic 'others' has no publisher"):
        TopicSource("others", registry=catalog, wait=0.01)


def test_a_source_that_waits_for_its_topic_asks_a_registry_again_that_does_not_answer(catalog: Catalog) -> None:
    answers: Iterator[bool] = iter([False, False, True])

    class Returning(Catalog):
        def find(self, name: str) -> Record | None:
            self.away = not next(answers)
            return super().find(name)

    returning = Returning(catalog.records)
    assert source(returning, wait=30.0).topic == "totals"
    assert returning.asked == 3


def test_references_end_where_64_bits_do() -> None:
    place = ReferenceCounter()
    assert (place.next(0), place.next(0), place.next(3)) == (0, 1, at(3, 0))
    with pytest.raises(PubSubError, match="has no reference"):
        place.next(1 << 31)


def test_a_row_is_json_whatever_it_holds() -> None:
    row = {
        "b": b"\x01\xff",
        "d": date(2026, 1, 2),
        "t": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "m": Decimal("1.50"),
        "i": timedelta(seconds=1.5),
        "l": [{"x": None}],
        "s": "é",
    }

    assert row_as_json(row).decode() == (
        '{"b":"01ff","d":"2026-01-02","t":"2026-01-02T03:04:05+00:00","m":"1.50","i":1.5,"l":[{"x":null}],"s":"é"}'
    )
