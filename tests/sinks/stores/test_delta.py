"""Rows reach a Delta table once, whatever else happens to the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tests.sinks.stores.checks import CHECKS, OF_TABLES, Store, name_of, refuses
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.stores.delta import DeltaSink

Make = Callable[..., DeltaSink]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "a table"


@pytest.fixture
def make(tmp_path: Path, place: Path) -> Make:
    settings = {"checkpoint": str(tmp_path / "checkpoint"), "name": "orders"}
    return lambda **more: DeltaSink(str(place), **{**settings, **more})


def table(place: Path) -> pa.Table:
    return pa.table(DeltaTable(place).to_pyarrow_table())


def values(place: Path, column: str = "value") -> list[Any]:
    try:
        return list(table(place).column(column).to_pylist())
    except TableNotFoundError:
        return []


def deliver(sink: DeltaSink, batch: int, columns: dict[str, Any]) -> list[Prepared]:
    """Prepare a batch of one partition, and commit it."""
    prepared = [sink.prepare(Transaction.new(sink.name, batch, 0), iter([pa.record_batch(columns)]))]
    sink.commit(batch, prepared)
    return prepared


@pytest.fixture
def store(make: Make, place: Path) -> Store:
    return Store(make, lambda: values(place))


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


def test_a_crash_behind_the_commit_repeats_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("wallaroo_spark.sinks.stores.staged_rows.StagedRows.drop", _die)
        prepared = store.prepare(0, ["a"], ["b"])
        with pytest.raises(SystemExit):
            store.make().commit(0, prepared)
    assert sorted(store.seen()) == ["a", "b"]
    store.make().commit(0, prepared)
    assert sorted(store.seen()) == ["a", "b"]
    assert store.make().recover() == []


def _die(*_: Any) -> None:
    raise SystemExit


def test_every_type_that_spark_has_comes_back(make: Make, place: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)
    nested = pa.list_(pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.binary()))]))
    columns = {
        "b": pa.array([True, None]),
        "i8": pa.array([-128, None], pa.int8()),
        "i64": pa.array([2**63 - 1, None], pa.int64()),
        "f": pa.array([float("nan"), None], pa.float32()),
        "d": pa.array([float("-inf"), -0.0]),
        "price": pa.array([Decimal("-9999999999.99"), None], pa.decimal128(12, 2)),
        "large": pa.array([Decimal(10) ** 37, None], pa.decimal128(38, 0)),
        "s": pa.array(["ä\0", ""], pa.large_string()),
        "raw": pa.array([b"\xff\0", None]),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
        "at": pa.array([at, None], pa.timestamp("us", "Europe/Berlin")),
        "local": pa.array([at.replace(tzinfo=None), None], pa.timestamp("us")),
        "nested": pa.array([[{"x": float("nan"), "m": [("k", b"v")]}, None], None], nested),
    }
    deliver(make(), 0, columns)

    found = table(place)
    for name, column in columns.items():
        there, wanted = found.column(name).to_pylist(), column.to_pylist()
        assert repr(there) == repr(wanted).replace("zoneinfo.ZoneInfo(key='Europe/Berlin')", "x") or name == "at"
    assert found.column("at").to_pylist()[0] == at


def test_readers_find_rows_by_their_ranges(make: Make, place: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)
    for batch in range(3):
        columns = {"n": pa.array([batch * 10, batch * 10 + 1]), "at": pa.array([at.replace(year=2020 + batch)] * 2)}
        deliver(make(), batch, columns)

    found = DeltaTable(place).to_pyarrow_dataset()
    assert found.to_table(filter=pc.field("n") == 11).num_rows == 1
    assert found.to_table(filter=pc.field("at") == pa.scalar(at.replace(year=2021))).num_rows == 2
    actions = pa.table(DeltaTable(place).get_add_actions(flatten=True))
    assert sorted(actions.column("max.n").to_pylist()) == [1, 11, 21]


def test_a_table_is_divided_by_columns(make: Make, place: Path) -> None:
    columns = {
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), None, date(2026, 1, 1)]),
        "shop": pa.array(["a/b ä", "a/b ä", "x", ""]),
        "n": pa.array([1, 2, 3, 4]),
    }
    deliver(make(partition_by=["day", "shop"]), 0, columns)
    deliver(make(), 1, columns)

    assert DeltaTable(place).metadata().partition_columns == ["day", "shop"]
    rows = table(place).select(["day", "shop", "n"]).to_pylist()
    assert sorted(rows, key=lambda row: row["n"])[::2] == [
        {"day": date(2026, 1, 1), "shop": "a/b ä", "n": 1},
        {"day": date(2026, 1, 2), "shop": "a/b ä", "n": 2},
        {"day": None, "shop": "x", "n": 3},
        {"day": date(2026, 1, 1), "shop": None, "n": 4},
    ]
    assert "partition_by is n" in refuses(make(partition_by="n"), columns, 2)
    assert "is divided by day, shop" in refuses(make(partition_by=["shop", "day"]), columns, 2)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"number": pa.array([1])}, "number is not in the table, which has n, s"),
        ({"n": pa.array(["1"]), "s": pa.array(["x"])}, "n is string, and int64 in the table: cast it"),
        ({"n": pa.array([1], pa.int32())}, "n is int32, and int64 in the table"),
        ({"n": pa.array([None], pa.int64())}, "n may not be null"),
        ({"s": pa.array(["x"])}, "n may not be null in the table, and a row has no value for it"),
        ({"n": pa.array([1]), "N": pa.array([1])}, "N is there twice"),
        ({"n": pa.array([1]), "v": pa.nulls(1)}, "v is of type null"),
    ],
    ids=["unknown", "text", "narrow", "null", "missing", "twice", "void"],
)
def test_rows_that_do_not_fit_the_table_are_refused_before_the_vote(
    make: Make, place: Path, columns: dict[str, Any], said: str
) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])
    DeltaTable.create(str(place), schema)

    assert said in refuses(make(), columns)
    assert list(place.glob("*.parquet")) == []


def test_a_table_whose_columns_change_goes_on(make: Make, place: Path) -> None:
    """Columns that were added meanwhile are null in rows that lack them."""
    deliver(make(), 0, {"n": pa.array([1])})
    write_deltalake(place, pa.table({"n": [2], "more": ["x"]}), mode="append", schema_mode="merge")
    deliver(make(), 1, {"n": pa.array([3])})
    deliver(make(), 2, {"more": pa.array(["y"]), "n": pa.array([4])})

    rows = sorted((row["n"], row["more"]) for row in table(place).to_pylist())
    assert rows == [(1, None), (2, "x"), (3, None), (4, "y")]


def test_rules_that_only_spark_keeps_are_named(make: Make, place: Path) -> None:
    deliver(make(), 0, {"n": pa.array([1])})
    DeltaTable(place).alter.add_constraint({"positive": "n > 0"})

    assert "has delta.constraints.positive, which this sink does not keep" in refuses(make(), {"n": pa.array([1])}, 1)


def test_compaction_and_vacuum_between_vote_and_commit_lose_nothing(make: Make, store: Store, place: Path) -> None:
    for batch in range(3):
        store.make().commit(batch, store.prepare(batch, [f"{batch}"]))
    prepared = store.prepare(3, ["3"])
    DeltaTable(place).optimize.compact()
    DeltaTable(place).vacuum(dry_run=False)
    store.make().commit(3, prepared)
    DeltaTable(place).optimize.compact()
    DeltaTable(place).create_checkpoint()
    store.make().commit(3, prepared)

    assert sorted(store.seen()) == ["0", "1", "2", "3"]


def test_two_queries_of_one_name_are_kept_apart(make: Make, store: Store, tmp_path: Path) -> None:
    other = Store(lambda: make(checkpoint=str(tmp_path / "other")), store.seen)
    for batch in range(2):
        for one in (store, other):
            one.make().commit(batch, one.prepare(batch, [f"{batch}"]))

    assert sorted(store.seen()) == ["0", "0", "1", "1"]


def test_a_table_that_is_gone_between_vote_and_commit_is_an_error(store: Store, place: Path) -> None:
    store.make().commit(0, store.prepare(0, ["a"]))
    prepared = store.prepare(1, ["b"])
    shutil.rmtree(place)
    with pytest.raises(SinkError, match=r"1 rows of orders/1/0/.* cannot be committed, because .* is not as it was"):
        store.make().commit(1, prepared)

    place.mkdir()
    store.make().commit(2, store.prepare(2, ["c"]))
    assert store.seen() == ["c"]


def test_a_table_on_an_unknown_file_system_and_a_damaged_log_are_errors(make: Make, place: Path) -> None:
    with pytest.raises(ConfigurationError, match="delta: logs are written to local folders and to s3a"):
        DeltaSink("hdfs://name/table", checkpoint=str(place), name="orders").prepare(
            Transaction.new("orders", 0, 0), iter([pa.record_batch({"n": [1]})])
        )
    deliver(make(), 0, {"n": pa.array([1])})
    (place / "_delta_log" / f"{0:020d}.json").write_text(json.dumps({"protocol": 7}))
    assert "could not read the log" in refuses(make(), {"n": pa.array([1])}, 1)
