"""Rows reach an Iceberg table once, whatever else happens to the table."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType, TimeType

from tests.evil_values import texts
from tests.sinks.stores.checks import CHECKS, OF_TABLES, Store, name_of, refuses
from tests.sinks.stores.iceberg_lake import Lake
from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores.iceberg import IcebergSink

Make = Callable[..., IcebergSink]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "a lake")


@pytest.fixture
def make(tmp_path: Path, lake: Lake) -> Make:
    settings = {"checkpoint": str(tmp_path / "checkpoint"), "name": "orders", "catalog": "lake"}
    given: dict[str, Any] = {"properties": lake.properties, **settings}
    return lambda **more: IcebergSink("shop.orders", **{**given, **more})


@pytest.fixture
def store(make: Make, lake: Lake) -> Store:
    lake.create(pa.schema([("value", pa.string())]))
    return Store(make, lambda: [str(value) for value in lake.rows()["value"].to_pylist()])


def deliver(sink: IcebergSink, batch: int, columns: dict[str, Any]) -> None:
    """Prepare a batch of one partition, and commit it."""
    piece = pa.record_batch(columns)
    sink.commit(batch, [sink.prepare(Transaction.new(sink.name, batch, 0), iter([piece]))])


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store) -> None:
    check(store)


@pytest.mark.parametrize("check", OF_TABLES, ids=name_of)
def test_a_table_under_two_drivers_and_checkpoints(
    check: Callable[[Store, Path, pytest.MonkeyPatch], None],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(store, tmp_path / "checkpoint", monkeypatch)


def test_types_come_back_from_a_table_that_is_divided(make: Make, lake: Lake) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)
    columns = {
        "shop": pa.array(["a/b ä", None, "a/b ä"]),
        "f": pa.array([float("nan"), None, float("-inf")]),
        "price": pa.array([Decimal("-9999999999.99"), None, Decimal(1)], pa.decimal128(12, 2)),
        "raw": pa.array([b"\xff\0", None, b""]),
        "day": pa.array([date(1, 1, 1), None, date(9999, 12, 31)]),
        "at": pa.array([at, None, at], pa.timestamp("us", "UTC")),
        "nested": pa.array([[{"x": 1.5}, None], None, []], pa.list_(pa.struct([("x", pa.float64())]))),
    }
    with lake.create(pa.record_batch(columns).schema).update_spec() as update:
        update.add_identity("shop")
    for batch in range(2):
        deliver(make(), batch, columns)

    assert lake.rows().num_rows == 6
    # Read from the files: pyiceberg 0.12 reads a list of structs that is null as an empty one.
    files = [path.removeprefix("file://") for path in lake.table().inspect.files()["file_path"].to_pylist()]
    rows = pa.concat_tables([parquet.read_table(path) for path in files])
    found = rows.sort_by([("shop", "ascending"), ("f", "ascending")]).to_pylist()
    wanted = pa.table(columns).sort_by([("shop", "ascending"), ("f", "ascending")]).to_pylist()
    assert repr(found[::2]).replace("<UTC>", "") == repr(wanted).replace("<UTC>", "")
    parts = lake.table().inspect.partitions().to_pylist()
    assert sorted((str(one["partition"]["shop"]), one["record_count"]) for one in parts) == [("None", 2), ("a/b ä", 4)]


def test_what_does_not_fit_is_refused_before_the_vote(make: Make, lake: Lake) -> None:
    assert "is not in the catalog lake; create it" in refuses(make(), {"n": [1]})
    lake.create(pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())]))
    assert "number is not in the table, which has n, s" in refuses(make(), {"number": pa.array([1])})
    assert "n is int32, and int64 in the table" in refuses(make(), {"n": pa.array([1], pa.int32())})
    assert "n may not be null" in refuses(make(), {"n": pa.array([None], pa.int64())})
    with lake.table().update_spec() as update:
        update.add_field("n", BucketTransform(4), "bucket")
    assert "is divided by bucket[4] of a column" in refuses(make(), {"n": pa.array([1])})


def test_expired_snapshots_and_new_columns_repeat_and_lose_nothing(store: Store, lake: Lake) -> None:
    prepared = store.prepare(0, ["a"])
    store.make().commit(0, prepared)
    marked = lake.table().current_snapshot()
    assert marked is not None
    lake.table().append(pa.table({"value": ["of another writer"]}))
    lake.table().maintenance.expire_snapshots().by_id(marked.snapshot_id).commit()
    with lake.table().update_schema() as update:
        update.add_column("more", StringType())
    store.make().commit(0, prepared)
    store.make().commit(1, store.prepare(1, ["b"]))

    assert sorted(store.seen()) == ["a", "b", "of another writer"]
    assert marked.snapshot_id not in [one.snapshot_id for one in lake.table().snapshots()]


def _renamed(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("n", "k")


def _made_anew(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("n")


@pytest.mark.parametrize(
    ("first", "rows"),
    [(_renamed, [{"k": 1, "m": 2, "n": None}]), (_made_anew, [{"m": 2, "n": None}])],
    ids=["renamed", "dropped"],
)
@pytest.mark.parametrize("when", ["before the commit", "behind it"])
def test_a_new_column_of_an_old_name_does_not_take_the_old_values(
    make: Make, lake: Lake, first: Callable[[Table], None], rows: list[dict[str, Any]], when: str
) -> None:
    lake.create(pa.schema([("n", pa.int64()), ("m", pa.int64())]))
    prepared = [make().prepare(Transaction.new("orders", 0, 0), iter([pa.record_batch({"n": [1], "m": [2]})]))]
    if when == "behind it":
        make().commit(0, prepared)
    first(lake.table())
    with lake.table().update_schema() as update:
        update.add_column("n", StringType())
    make().commit(0, prepared)

    assert lake.rows().to_pylist() == rows


def test_values_beyond_all_bounds_are_found(make: Make, lake: Lake) -> None:
    """Parquet has no bounds for long texts, and Python no values for times behind the year 9999."""
    long = {letter: letter * 5000 for letter in "xy"}
    moments = pa.array([-(10**17), 10**18], pa.int64()).cast(pa.timestamp("us", "UTC"))
    days = pa.array([-800_000, 3_000_000], pa.int32()).cast(pa.date32())
    columns = {
        "shop": pa.array([*long.values()]),
        "text": pa.array([*long.values()]),
        "at": moments,
        "day": days,
        "n": pa.array([1, 2]),
    }
    with lake.create(pa.record_batch(columns).schema).update_spec() as update:
        update.add_identity("shop")
    deliver(make(), 0, columns)

    for row_filter in (f"shop = '{long['x']}'", f"text = '{long['y']}'", "at > '2026-01-01T00:00:00+00:00'", "n = 2"):
        assert lake.table().scan(row_filter=row_filter).to_arrow().num_rows == 1
    found = lake.rows().sort_by("n")
    assert found.column("at").cast(pa.int64()).to_pylist() == [-(10**17), 10**18]
    assert found.column("day").cast(pa.int32()).to_pylist() == [-800_000, 3_000_000]
    bounds = lake.table().inspect.files()["readable_metrics"].to_pylist()
    assert sorted(one["n"]["lower_bound"] for one in bounds) == [1, 2]
    assert [one["at"]["lower_bound"] for one in bounds] == [None, None]


def test_a_row_group_without_bounds_leaves_its_file_without(
    make: Make, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.sinks.stores.files._GATHERED_BYTES", 1)
    lake.create(pa.schema([("value", pa.string())]))
    pieces = [pa.record_batch({"value": ["a"]}), pa.record_batch({"value": ["z" * 5000]})]
    make().commit(0, [make().prepare(Transaction.new("orders", 0, 0), iter(pieces))])

    [path] = (path.removeprefix("file://") for path in lake.table().inspect.files()["file_path"].to_pylist())
    assert parquet.read_metadata(path).num_row_groups == 2
    assert lake.table().scan(row_filter=f"value = '{'z' * 5000}'").count() == 1


def test_a_table_that_is_made_again_or_divided_otherwise_between_vote_and_commit_is_an_error(
    store: Store, lake: Lake
) -> None:
    prepared = store.prepare(0, ["a"])
    with lake.table().update_spec() as update:
        update.add_identity("value")
    with pytest.raises(SinkError, match="was divided otherwise after the files of this batch were written"):
        store.make().commit(0, prepared)
    with lake.table().update_spec() as update:
        update.remove_field("value")
    store.make().commit(0, prepared)
    assert store.seen() == ["a"]

    prepared = store.prepare(1, ["b"])
    lake.table().catalog.drop_table("shop.orders")
    lake.create(pa.schema([("value", pa.string())]))
    with pytest.raises(SinkError, match=r"cannot be committed, because shop.orders was dropped and made again"):
        store.make().commit(1, prepared)
    assert store.seen() == []


def test_a_table_of_a_newer_format_is_refused_before_the_vote(make: Make, lake: Lake) -> None:
    # pyiceberg reads tables of version 3, makes none, and fails when it commits to one.
    lake.create(pa.schema([("value", pa.string())]))
    file = Path(lake.table().metadata_location.removeprefix("file://"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "format-version": 3, "next-row-id": 0}))

    assert "has version 3 of Iceberg's format" in refuses(make(), {"value": ["a"]})


def test_a_catalog_that_cannot_be_used_is_an_error_of_the_sink_and_the_batch_comes_when_it_can(
    make: Make, store: Store, lake: Lake
) -> None:
    prepared = store.prepare(0, ["a"])
    with sqlite3.connect(lake.properties["uri"].removeprefix("sqlite:///"), isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SinkError, match=r"in the catalog lake: .*database is locked"):
            make(properties={**lake.properties, "uri": lake.properties["uri"] + "?timeout=0.1"}).commit(0, prepared)
        other.execute("ROLLBACK")
    make().commit(0, prepared)

    assert store.seen() == ["a"]


def test_a_column_of_the_table_that_the_sink_does_not_write_is_named(make: Make, lake: Lake) -> None:
    with lake.create(pa.schema([("n", pa.int64())])).update_schema() as update:
        update.add_column("at", TimeType())
    said = refuses(make(), {"n": pa.array([1])})
    assert "column at is of type time64[us], which this sink does not write: write to another table" in said


def test_texts_that_are_no_text_are_refused_before_the_vote(make: Make, lake: Lake) -> None:
    lake.create(pa.schema([("value", pa.string())]))
    for bad in (b"\xff", b"\xed\xa0\x80"):
        assert "column value has a text that is no UTF-8" in refuses(make(), {"value": texts(b"good", bad)})


def test_a_table_that_is_gone_between_vote_and_commit_is_an_error(store: Store, lake: Lake) -> None:
    prepared = store.prepare(0, ["a"])
    Path(prepared[0].detail["files"][0]["path"].removeprefix("file://")).unlink()
    with pytest.raises(SinkError, match=r"the 1 rows of orders/0/0/.* cannot be committed, because .* is gone"):
        store.make().commit(0, prepared)
    lake.drop()
    with pytest.raises(SinkError, match="is not in the catalog lake"):
        store.make().commit(0, prepared)
