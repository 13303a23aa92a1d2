"""Topics in a real Redis: announced topics are found, entries that are not renewed expire, and names are checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import redis

from tests.waiting import eventually
from wallaroo_spark.errors import ConfigurationError, RegistryError
from wallaroo_spark.pubsub.topic_catalog import PublisherProgress, ServedPartition, TopicCatalog, TopicRecord, leases_of
from wallaroo_spark.registry import EmbeddedRedis

_numbers = itertools.count()


@pytest.fixture
def topics(file_redis: EmbeddedRedis) -> Iterator[TopicCatalog]:
    with TopicCatalog(file_redis.url, lease_seconds=60) as opened:
        yield opened


@pytest.fixture
def record() -> TopicRecord:
    return TopicRecord(f"totals-{next(_numbers)}", 2, "abc", True, b"\x00schema\xff", "driver-1")


def test_an_announced_topic_is_found_until_it_is_withdrawn(topics: TopicCatalog, record: TopicRecord) -> None:
    assert topics.find(record.name) is None

    topics.announce(record)

    assert topics.find(record.name) == record
    assert record.name in topics.names()
    topics.withdraw(record.name)
    assert topics.find(record.name) is None
    assert record.name not in topics.names()


def test_a_topic_whose_driver_is_gone_is_forgotten(
    file_redis: EmbeddedRedis, topics: TopicCatalog, record: TopicRecord
) -> None:
    with TopicCatalog(file_redis.url, lease_seconds=0.05) as brief:
        brief.announce(record)

    eventually(lambda: topics.find(record.name) is None)


def test_a_partition_is_found_where_its_lease_says(
    file_redis: EmbeddedRedis, topics: TopicCatalog, record: TopicRecord
) -> None:
    with leases_of(file_redis.url, record.name, 60) as leases:
        leases.acquire(0, 1, "p-0", "", "")
        assert topics.served(record.name) == {}, "it is not listening yet"

        leases.acquire(0, 1, "p-0", "host:1", "")
        leases.acquire(1, 2, "p-1", "host:2", "")
        topics.report(record.name, 1, PublisherProgress(7, 3))

    assert topics.served(record.name) == {
        0: ServedPartition("host:1"),
        1: ServedPartition("host:2", PublisherProgress(7, 3)),
    }


def test_a_publisher_that_has_sent_nothing_says_so(topics: TopicCatalog, record: TopicRecord) -> None:
    topics.report(record.name, 0, PublisherProgress(None, 0))

    assert topics.served(record.name) == {}
    assert topics._progress(record.name, 0) == PublisherProgress(None, 0)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "{a}", "two words", "x" * 101, "a:b", "*"])
def test_a_name_that_cannot_be_one_is_refused(topics: TopicCatalog, name: str) -> None:
    with pytest.raises(ConfigurationError, match="use 1 to 100 letters"):
        topics.find(name)


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', '{"name": "a"}'])
def test_a_record_of_another_program_is_an_error(
    file_redis: EmbeddedRedis, topics: TopicCatalog, record: TopicRecord, text: str
) -> None:
    with redis.Redis.from_url(file_redis.url) as client:
        client.set(f"wallaroo:{{topic:{record.name}}}:record", text)

    with pytest.raises(RegistryError, match="check that nothing else writes the key wallaroo:"):
        topics.find(record.name)
