"""Rows become events of a durable stream: all of a batch at once, and each batch once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.stores.checks import CHECKS, Store, name_of, refuses
from tests.sinks.stores.stream_reader import declare, payloads, published
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.pipelines.schema.applying import delete_objects
from wallaroo_spark.pipelines.schema.cloud_event import partition_of
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores import stream as module
from wallaroo_spark.sinks.stores.stream import StreamSink
from wallaroo_spark.streams.inbox import InboxPosition, InboxReader

Make = Callable[..., StreamSink]


@pytest.fixture
def application(tmp_path: Path) -> str:
    return declare(tmp_path)


@pytest.fixture
def make(tmp_path: Path, application: str) -> Make:
    given = {"checkpoint": str(tmp_path / "checkpoint"), "type": "t"}
    return lambda stream="shop/orders", **more: StreamSink(application, stream, **{**given, **more})


@pytest.fixture
def store(make: Make, application: str) -> Store:
    return Store(make, lambda: payloads(application))


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store) -> None:
    check(store)


def write(sink: StreamSink, batch: int, *partitions: dict[str, Any]) -> None:
    """Prepare and commit a batch; each partition is given as its columns."""
    prepared = [
        sink.prepare(Transaction.new(sink.name, batch, number), iter([pa.record_batch(columns)]))
        for number, columns in enumerate(partitions)
    ]
    sink.commit(batch, prepared)


def test_a_batch_is_readable_with_one_file_and_only_when_all_others_are_there(
    store: Store, make: Make, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_EVENTS", 2)
    prepared = store.prepare(0, ["a", "b", "c"], ["d", "e"])
    seen: list[list[str]] = []
    monkeypatch.setattr(module, "passed", lambda _: seen.append(payloads(application)))
    make().commit(0, prepared)

    assert seen == [[]] * 3
    assert payloads(application) == ["a", "b", "c", "d", "e"]


def test_rows_keep_their_order_in_their_partition_over_files_batches_and_tasks(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = declare(tmp_path / "more", partitions=3)
    monkeypatch.setattr(module, "FILE_EVENTS", 7)
    monkeypatch.setattr(module, "ROW_EVENTS", 2)
    sink = StreamSink(application, "shop/orders", checkpoint=str(tmp_path / "checkpoint"), type="t")
    for batch in range(3):
        columns = [
            {"value": [f"{batch} {task} {number:02}" for number in range(20)], "key": [str(n % 5) for n in range(20)]}
            for task in range(2)
        ]
        write(sink, batch, *columns)

    for most_rows in (1_000_000, 10):
        found = published(application, most_rows)
        assert len(found) == 120
        for key in map(str, range(5)):
            own = [one for one in found if ("partitionkey", key) in one.event.attributes]
            assert {one.key.partition for one in own} == {partition_of(own[0].event, 3)}
            assert {one.divided for one in own} == {3}
            texts = [one.event.data or b"" for one in own]
            assert texts == sorted(texts)
            assert len(texts) == 24


def test_a_message_of_a_receiver_is_known_by_its_connector_and_its_id(make: Make, application: str) -> None:
    rows = {
        "instance": ["till-7", "till-7"],
        "stream": ["orders", "orders"],
        "message_id": [17, None],
        "value": ["a", "b"],
    }
    write(make(), 4, rows)

    first, second = (one.event for one in published(application))
    assert (first.id, first.source, first.type) == ("orders/17", "till-7", "t")
    assert dict(first.attributes) == {"datacontenttype": "text/plain; charset=utf-8", "partitionkey": "till-7/orders"}
    assert second.id == "shop.orders/5/0/1"


def test_a_row_may_name_its_partition(make: Make, tmp_path: Path) -> None:
    application = declare(tmp_path / "more", partitions=3)
    sink = StreamSink(application, "shop/orders", checkpoint=str(tmp_path / "checkpoint"), type="t")
    write(sink, 0, {"value": ["a", "b"], "partition": [2, None]})

    named, other = published(application)
    assert {(one.event.data, one.key.partition, one.divided) for one in (named, other)} >= {(b"a", 2, 0)}
    assert "names partition 3, and there are 3: 0 to 2" in refuses(sink, {"value": ["a"], "partition": [3]}, 1)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"value": ["a"], "type": [""], "time": ["noon"]}, "has the time 'noon', which is not RFC 3339"),
        ({"value": [b"x" * (3 << 20)]}, "bytes, and 3145728 are permitted"),
        ({"value": ["a"], "price": [3]}, "column price is unknown; it takes the columns"),
        ({"text": ["a"]}, "column data is missing"),
        ({"value": [{"a": 1}]}, "turn it into a string or binary first"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused_by_its_place_and_the_rule(
    make: Make, columns: dict[str, Any], problem: str
) -> None:
    assert problem in refuses(make(), columns)


def test_a_refused_row_is_named_and_none_of_its_batch_is_written(make: Make, application: str) -> None:
    rows = {"instance": ["till"] * 2, "stream": ["s"] * 2, "message_id": [1, 2], "value": ['{"type": "t"}', "no"]}
    assert refuses(make(format="cloudevents"), rows) == (
        "sink shop.orders: row 1 of partition 0 cannot be an event of shop/orders: event 's/2' of 'till' is no "
        "CloudEvent in JSON: Expecting value: line 1 column 1 (char 0); write "
        '{"type": "shop.order.created", "data": {…}}, for example; filter such rows out, or give dead_letters= a '
        "stream that takes them"
    )
    assert payloads(application) == []


def test_dead_letters_take_the_rows_that_no_event_can_be_made_of(make: Make, application: str) -> None:
    rows = {"value": ['{"type": "t"}', "no", '{"type": "t", "time": 5}', '"' + "x" * (3 << 20)]}
    write(make(format="cloudevents", dead_letters="shop/refused"), 0, rows)

    good, *letters = sorted(published(application), key=lambda one: one.key.stream)
    assert (good.key.stream, good.event.type) == ("shop/orders", "t")
    assert [(one.event.id, one.event.data and len(one.event.data)) for one in letters] == [
        ("shop.orders/1/0/1", 2), ("shop.orders/1/0/2", 24), ("shop.orders/1/0/3", None),
    ]  # fmt: skip
    assert dict(letters[1].event.attributes) == {
        "failedreason": "has the time '5', which is not RFC 3339; write for example 2026-03-01T12:00:00Z",
        "failedstream": "shop/orders",
    }
    assert {one.event.type for one in letters} == {"wallaroo.row.invalid"}


def test_a_stream_that_is_not_declared_refuses_the_batch(make: Make, application: str) -> None:
    assert "has no stream shop/nowhere; it has shop/orders, shop/refused" in refuses(
        make("shop/nowhere"), {"value": ["a"]}
    )
    sink = make()
    delete_objects(SchemaStore(application), [ObjectKey("Stream", "shop", "orders")], time.time())
    assert "has no stream shop/orders" in refuses(sink, {"value": ["a"]})


def test_a_name_belongs_to_one_query_until_its_owner_is_deleted(make: Make, tmp_path: Path, application: str) -> None:
    write(make(), 0, {"value": ["a"]})
    write(make(), 1, {"value": ["b"]})
    other = {"checkpoint": str(tmp_path / "other")}

    assert "belongs to another query, or to an older checkpoint" in refuses(make(**other), {"value": ["c"]})
    write(make(**other, name="other"), 0, {"value": ["c"]})
    os.remove(Path(application, "_wallaroo", "inbox", "sink-shop.orders", "owner.json"))
    write(make(**other), 0, {"value": ["d"]})

    assert sorted(payloads(application)) == ["a", "b", "c", "d"]


def test_an_older_checkpoint_is_refused_and_repeats_nothing(make: Make, application: str) -> None:
    for batch in range(3):
        write(make(), batch, {"value": [str(batch)]})

    assert "has batch 1 already, so the query's checkpoint is older" in refuses(make(), {"value": ["1"]}, 1)
    assert payloads(application) == ["0", "1", "2"]


def test_a_commit_that_is_repeated_after_the_application_has_read_and_deleted_its_files_changes_nothing(
    store: Store, make: Make, application: str
) -> None:
    first, second = store.prepare(0, ["a"]), store.prepare(1, ["b"])
    make().commit(0, first)
    make().commit(1, second)
    InboxReader(application).delete_read({"sink-shop.orders": InboxPosition(2, 1)})

    make().commit(0, first)
    make().commit(1, second)

    assert published(application) == []


def test_files_that_are_gone_before_the_commit_are_an_error(store: Store, make: Make) -> None:
    prepared = store.prepare(0, ["a"])
    make().abort(make().recover())

    with pytest.raises(SinkError, match="is gone, and its rows cannot be committed") as lost:
        make().commit(0, prepared)
    assert lost.value.code == "sink-rows-lost"


def test_a_batch_waits_for_an_application_that_is_behind_and_not_for_ever(make: Make, application: str) -> None:
    write(make(), 0, {"value": ["a" * 2000]})
    began = time.monotonic()
    rows: Any = object()

    assert make().when_there_is_room(rows) is rows
    with pytest.raises(SinkError, match=r"has not read .* bytes of earlier batches for 0\.5 s, and max_unread is 1000"):
        make(max_unread=1000, timeout=0.5).when_there_is_room(rows)
    assert time.monotonic() - began >= 0.5


def test_a_setting_that_cannot_work_is_refused(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="'orders' is no name of a stream; give namespace/name"):
        make("orders")
