"""Rows reach a Redis stream or list a batch at once, and once."""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import redis

from tests import evil_values as evil
from tests.pems import Pems
from tests.registry.tls import tls_in_front_of
from tests.sinks.stores.checks import (
    CHECKS,
    Store,
    check_a_crash_behind_the_commit_repeats_nothing,
    check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over,
    name_of,
    refuses,
)
from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.registry.embedded import EmbeddedRedis
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores.redis import RedisSink


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as opened:
        yield opened


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def make(redis_url: str, tmp_path: Path) -> Callable[..., RedisSink]:
    return lambda **target: RedisSink(redis_url, checkpoint=str(tmp_path / "checkpoint"), name="orders", **target)


@pytest.fixture(params=["stream", "list"])
def store(request: pytest.FixtureRequest, make: Callable[..., RedisSink], client: Any, key: str) -> Store:
    def seen() -> list[str]:
        if request.param == "list":
            return [value.decode() for value in client.lrange(key, 0, -1)]
        return [fields[b"value"].decode() for _, fields in client.xrange(key)]

    return Store(lambda: make(**{request.param: key}), seen)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store) -> None:
    check(store)


def test_a_crash_behind_the_commit_repeats_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_crash_behind_the_commit_repeats_nothing(store, monkeypatch)


def test_fields_are_the_columns_and_nulls_are_left_out(make: Callable[..., RedisSink], client: Any, key: str) -> None:
    columns = {
        "count": pa.array([1, None], pa.int32()),
        "name": pa.array(["ä", "b"]).dictionary_encode(),
        "raw": pa.array([b"\xff\x00", None], pa.binary()),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    }
    sink = make(stream=key)
    sink.commit(0, [sink.prepare(Transaction.new("orders", 0, 0), iter([pa.record_batch(columns)]))])

    first, second = [fields for _, fields in client.xrange(key)]
    at = b"2026-01-02 03:04:05.000000Z"
    assert first == {b"count": b"1", b"name": "ä".encode(), b"raw": b"\xff\x00", b"at": at}
    assert second == {b"name": b"b"}


@pytest.mark.parametrize("column", [pa.array([*evil.PAYLOADS.values()]), evil.texts(*evil.PAYLOADS.values())])
@pytest.mark.parametrize("kind", ["stream", "list"])
def test_evil_values_arrive_as_they_are(
    make: Callable[..., RedisSink], client: Any, key: str, kind: str, column: pa.Array
) -> None:
    sink = make(**{kind: key})
    rows = iter([pa.record_batch({"value": column})])
    sink.commit(0, [sink.prepare(Transaction.new("orders", 0, 0), rows)])

    found = client.lrange(key, 0, -1) if kind == "list" else [row[b"value"] for _, row in client.xrange(key)]
    assert found == [*evil.PAYLOADS.values()]


def test_a_batch_of_many_rows_keeps_their_order_and_leaves_no_other_key(store: Store, client: Any) -> None:
    before = set(client.keys())
    values = [f"{number}" for number in range(5_001)]

    store.make().commit(0, store.prepare(0, values))

    assert store.seen() == values
    left = {found.decode() for found in set(client.keys()) - before}
    assert len(left) == 2
    assert any(found.endswith("}:wallaroo:orders") for found in left)


def test_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over(store: Store, tmp_path: Path) -> None:
    check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over(store, tmp_path / "checkpoint")


def test_a_reader_sees_all_of_a_batch_or_nothing(store: Store) -> None:
    counts: set[int] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            counts.add(len(store.seen()))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        store.make().commit(0, store.prepare(0, ["a"] * 700, ["b"] * 800))
    finally:
        done.set()
        reader.join()

    assert counts | {len(store.seen())} <= {0, 1500}


def test_a_driver_that_was_overtaken_commits_nothing_again(store: Store) -> None:
    old, late = store.prepare(0, ["a"]), store.make()
    store.make().commit(0, old)
    store.make().commit(1, store.prepare(1, ["b"]))

    late.commit(0, old)

    assert store.seen() == ["a", "b"]


def test_rows_that_redis_loses_on_their_way_are_carried_again(
    store: Store, client: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = store.prepare(0, ["a"], ["b"])

    def lose(_: object) -> None:
        client.delete(*client.keys(f"{{{key}}}:wallaroo:orders:0:*"))

    monkeypatch.setattr("wallaroo_spark.sinks.stores.redis.passed", lose)
    with pytest.raises(SinkError, match="GONE rows on their way"):
        store.make().commit(0, prepared)
    assert store.seen() == []
    monkeypatch.undo()

    store.make().commit(0, prepared)
    assert store.seen() == ["a", "b"]


def test_a_new_checkpoint_counts_from_the_start(redis_url: str, store: Store, tmp_path: Path, key: str) -> None:
    store.make().commit(5, store.prepare(5, ["old"]))
    kind = "list" if "list" in repr(store.make()) else "stream"
    target: dict[str, Any] = {kind: key}
    new = RedisSink(redis_url, checkpoint=str(tmp_path / "another"), name="orders", **target)

    new.commit(0, store.prepare(0, ["new"], sink=new))

    assert store.seen() == ["old", "new"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": [[1]]}, "column value of type list<item: int64> cannot be written"),
        ({"value": pa.array(["a", None])}, "is null, and Redis has no null"),
    ],
    ids=["nested", "null"],
)
def test_rows_that_redis_cannot_hold_are_a_vote_to_abort(store: Store, columns: dict[str, Any], said: str) -> None:
    assert said in refuses(store.make(), columns)


def test_a_list_takes_one_column(make: Callable[..., RedisSink], key: str) -> None:
    assert "column value is missing" in refuses(make(list=key), {"other": ["a"]})
    assert "column other is unknown" in refuses(make(list=key), {"value": ["a"], "other": ["a"]})


def test_a_key_of_another_kind_is_a_vote_to_abort(store: Store, client: Any, key: str) -> None:
    prepared = store.prepare(0, ["a"])
    client.set(key, "somebody's")

    assert f"the key {key} is a string" in refuses(store.make(), {"value": ["a"]})
    with pytest.raises(SinkError, match="WRONGTYPE"):
        store.make().commit(0, prepared)
    client.delete(key)
    store.make().commit(0, prepared)
    assert store.seen() == ["a"]


def test_a_redis_that_went_away_gets_the_batch_when_it_is_back(tmp_path: Path) -> None:
    with EmbeddedRedis() as server:
        sink = RedisSink(server.url, checkpoint=str(tmp_path), name="orders", list="rows", timeout=SECONDS)
        prepared = [sink.prepare(Transaction.new("orders", 0, 0), iter([pa.record_batch({"value": ["a"]})]))]
        server.stop()
        with pytest.raises(SinkError, match=r"could not take batch 0: .*refused") as refused:
            sink.commit(0, prepared)
        assert server.url.split("@")[0].split(":")[-1] not in str(refused.value)
        server.start()
        sink.commit(0, prepared)
        with redis.Redis.from_url(server.url) as client:
            assert client.lrange("rows", 0, -1) == [b"a"]


@pytest.mark.parametrize("target", [{}, {"stream": "a", "list": "b"}])
def test_there_is_one_key_to_write_to(make: Callable[..., RedisSink], target: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="either stream= or list="):
        make(**target)


def test_a_url_that_cannot_be_read_is_not_repeated(tmp_path: Path) -> None:
    sink = RedisSink("redis://:secret@host:port", checkpoint=str(tmp_path), name="orders", list="rows")

    with pytest.raises(ConfigurationError, match="the URL cannot be read") as refused:
        sink.prepare(Transaction.new("orders", 0, 0), iter([]))
    assert "secret" not in str(refused.value)


def test_over_tls_the_host_s_name_is_checked_whatever_the_client_does_by_itself(
    tmp_path: Path, pems: Pems, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    honest = redis.SSLConnection.__init__

    def lenient(self: Any, **settings: Any) -> None:
        honest(self, **{"ssl_check_hostname": False, **settings})

    # As older versions of the client do.
    monkeypatch.setattr(redis.SSLConnection, "__init__", lenient)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pems.client, pems.client_key)
    with EmbeddedRedis() as server, tls_in_front_of(server, context) as port:
        password = urlsplit(server.url).password
        url = f"rediss://:{password}@localhost:{port}/0?ssl_ca_certs={pems.ca}"
        sink = RedisSink(url, checkpoint=str(tmp_path / "checkpoint"), name="orders", list=key)
        with pytest.raises(SinkError, match="certificate verify failed") as refused:
            sink.prepare(Transaction("orders", 0, 0, "0"), iter([pa.record_batch({"value": ["x"]})]))
    assert str(password) not in str(refused.value)
