"""Rows reach an Iceberg table once, whatever else happens to the table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

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
    return lambda **more: IcebergSink("shop.orders", properties=lake.properties, **{**settings, **more})


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


def test_a_table_that_is_gone_between_vote_and_commit_is_an_error(store: Store, lake: Lake) -> None:
    prepared = store.prepare(0, ["a"])
    lake.drop()
    with pytest.raises(SinkError, match="is not in the catalog lake"):
        store.make().commit(0, prepared)
    lake.create(pa.schema([("value", pa.string())]))
    with pytest.raises(SinkError, match=r"the 1 rows of orders/0/0/.* cannot be committed, because .* is gone"):
        store.make().commit(0, prepared)
