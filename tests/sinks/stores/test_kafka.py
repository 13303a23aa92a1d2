"""Rows reach a Kafka topic a batch in one transaction, and once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from proving.servers.kafka import KafkaServer
from tests.sinks.stores.checks import (
    CHECKS,
    Store,
    check_a_crash_behind_the_commit_repeats_nothing,
    check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over,
    name_of,
    refuses,
)
from tests.sinks.stores.kafka_reader import records
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores.kafka import KafkaSink, KafkaTopic, Mark, read_mark

Make = Callable[..., KafkaSink]


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    name = f"rows-{uuid.uuid4().hex[:8]}"
    kafka.create(name, partitions=2, max_message_bytes="20000")
    return name


@pytest.fixture
def make(kafka: KafkaServer, topic: str, tmp_path: Path) -> Make:
    settings = {"topic": topic, "checkpoint": str(tmp_path / "checkpoint"), "name": f"orders-{topic}"}
    return lambda **more: KafkaSink(kafka.bootstrap, **{**settings, **more})


@pytest.fixture
def store(make: Make, kafka: KafkaServer, topic: str) -> Store:
    def seen() -> list[str]:
        return [(message.value() or b"").decode() for message in records(kafka.bootstrap, topic)]

    return Store(make, seen)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store) -> None:
    check(store)


def test_a_crash_behind_the_commit_repeats_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_crash_behind_the_commit_repeats_nothing(store, monkeypatch)


def test_columns_are_those_of_sparks_own_sink(make: Make, kafka: KafkaServer, topic: str) -> None:
    headers = pa.array([[{"key": "h", "value": b"\x00"}, {"key": "h", "value": None}], None, []])
    columns = {
        "value": pa.array(["ä", None, "c"]),
        "key": pa.array([b"\xff", b"k", None]),
        "headers": headers,
        "partition": pa.array([1, None, 0], pa.int64()),
    }
    sink = make()
    sink.commit(0, [sink.prepare(Transaction.new(sink.name, 0, 0), iter([pa.record_batch(columns)]))])

    found = {(m.partition(), m.key(), m.value(), tuple(m.headers() or ())) for m in records(kafka.bootstrap, topic)}
    assert (1, b"\xff", "ä".encode(), (("h", b"\x00"), ("h", None))) in found
    assert (0, None, b"c", ()) in found
    # Java's partitioner has this key in that partition of two.
    assert (0, b"k", None, ()) in found
    assert len(found) == 3


def test_order_is_kept_within_a_partition(store: Store, make: Make) -> None:
    values = [f"{number}" for number in range(5_000)]
    sink = make()
    rows = pa.record_batch({"value": values, "partition": pa.array([0] * len(values))})
    sink.commit(0, [sink.prepare(Transaction.new(sink.name, 0, 0), iter([rows]))])

    assert store.seen() == values


def test_a_driver_that_was_overtaken_is_fenced_off(store: Store) -> None:
    old = store.make()
    old.commit(0, store.prepare(0, ["a"], sink=old))
    new = store.make()
    new.commit(1, store.prepare(1, ["b"], sink=new))

    prepared = store.prepare(1, ["b"], sink=old)
    with pytest.raises(SinkError, match="no other query has a sink of this name"):
        old.commit(1, prepared)
    # Told again, it takes the name back, and finds that the batch is there.
    old.commit(1, prepared)
    assert sorted(store.seen()) == ["a", "b"]


def test_rows_that_are_gone_leave_no_part_of_a_batch(store: Store, kafka: KafkaServer, topic: str) -> None:
    prepared = store.prepare(0, ["a"], ["b"])
    store.make().abort([prepared[1].transaction])

    with pytest.raises(SinkError, match="0 of 1 rows"):
        store.make().commit(0, prepared)
    assert store.seen() == []


def test_a_commit_that_fails_on_its_way_leaves_nothing_open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("half way")

    prepared, sink = store.prepare(0, ["a"], ["b"]), store.make()
    monkeypatch.setattr("wallaroo_spark.sinks.stores.kafka.passed", fail)
    with pytest.raises(RuntimeError, match="half way"):
        sink.commit(0, prepared)
    # All rows are with the broker, and it takes no other session for consumers to pass over them.
    assert store.seen() == []
    monkeypatch.undo()

    sink.commit(0, prepared)
    assert sorted(store.seen()) == ["a", "b"]


def test_a_new_checkpoint_counts_from_the_start(store: Store, make: Make, tmp_path: Path) -> None:
    store.make().commit(5, store.prepare(5, ["old"]))
    new = make(checkpoint=str(tmp_path / "another"))

    new.commit(0, store.prepare(0, ["new"], sink=new))

    assert sorted(store.seen()) == ["new", "old"]


def test_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over(store: Store, tmp_path: Path) -> None:
    check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over(store, tmp_path / "checkpoint")


def test_the_mark_is_found_behind_a_long_tail(
    store: Store, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = store.make()
    sink.commit(3, store.prepare(3, ["a"], sink=sink))
    # Its end is then the record that ends the transaction, which is no mark.
    monkeypatch.setattr("wallaroo_spark.sinks.stores.kafka._TAIL", 1)

    mark = read_mark(
        KafkaTopic({"bootstrap.servers": kafka.bootstrap}, "", 30), f"wallaroo-commits-{sink.name}", sink.name
    )

    assert isinstance(mark, Mark)
    assert mark.batch == 3


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": ["a"]}, "column value is missing"),
        ({"value": ["a"], "topic": ["t"]}, "column topic is unknown"),
        ({"value": ["a"], "headers": ["h"]}, "headers must be an array of structs"),
        ({"value": ["a"], "headers": [[{"key": None, "value": b""}]]}, "a header has no key"),
        ({"value": ["a"], "partition": [2]}, "is for partition 2"),
        ({"value": ["a"], "partition": [-1]}, "is for partition -1"),
        ({"value": ["a" * 20_000]}, "a record has up to 20000 bytes"),
    ],
    ids=["missing", "unknown", "headers", "header", "partition", "negative", "long"],
)
def test_rows_that_the_topic_does_not_take_are_a_vote_to_abort(make: Make, columns: dict[str, Any], said: str) -> None:
    assert said in refuses(make(), columns)


def test_the_longest_record_that_is_let_through_arrives(store: Store) -> None:
    value = "x" * (20_000 - 512)
    store.make().commit(0, store.prepare(0, [value]))

    assert store.seen() == [value]


def test_a_topic_that_is_not_there_is_a_vote_to_abort(make: Make) -> None:
    assert "topic nowhere: " in refuses(make(topic="nowhere"), {"value": ["a"]})


def test_brokers_that_are_not_there_are_a_vote_to_abort(tmp_path: Path) -> None:
    sink = KafkaSink("127.0.0.1:1", topic="rows", checkpoint=str(tmp_path), name="orders", timeout=1)

    assert "Kafka at 127.0.0.1:1 could not tell the partitions of topic rows" in refuses(sink, {"value": ["a"]})


def test_settings_of_the_sink_cannot_be_overridden(make: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"option transactional\.id is set by the sink"):
        make(options={"transactional.id": "mine"})
