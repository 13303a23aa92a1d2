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
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tests.evil_values import texts
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


def test_readers_find_rows_by_each_column(make: Make, place: Path) -> None:
    """deltalake's reader finds none by a column without a range in the log, where another column has one."""
    at = datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=UTC)
    for batch in range(3):
        columns = {
            "n": pa.array([batch * 10, batch * 10 + 1]),
            "at": pa.array([at.replace(year=2020 + batch)] * 2),
            "s": pa.array([f"{batch}", None]),
            "f": pa.array([float("nan"), batch + 0.5]),
        }
        deliver(make(), batch, columns)

    filters = [
        (pc.field("n") == 11, 1),
        (pc.field("at") == pa.scalar(at.replace(year=2021)), 2),
        (pc.field("s") == "1", 1),
        (pc.field("s").is_null(), 3),
        (pc.field("f") == 1.5, 1),
    ]
    for _ in range(2):
        found = DeltaTable(place).to_pyarrow_dataset()
        assert [found.to_table(filter=one).num_rows for one, _ in filters] == [rows for _, rows in filters]
        DeltaTable(place).create_checkpoint()
    assert DeltaTable(place).to_pyarrow_table(filters=[("s", "=", "2")]).num_rows == 1
    assert pa.table(DeltaTable(place).get_add_actions(flatten=True)).column("num_records").to_pylist() == [2, 2, 2]


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


def test_a_table_that_forgets_transactions_or_is_restored_takes_no_batch_again(
    make: Make, store: Store, place: Path
) -> None:
    schema = Schema.from_arrow(pa.schema([("value", pa.string())]))
    retention = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    DeltaTable.create(place, schema, configuration=retention)
    prepared = store.prepare(0, ["a"])
    make().commit(0, prepared)
    DeltaTable(place).create_checkpoint()
    make().commit(0, prepared)
    assert store.seen() == ["a"]

    DeltaTable(place).restore(0)
    make().commit(0, prepared)
    make().commit(1, store.prepare(1, ["b"]))
    assert store.seen() == ["b"]


def test_two_queries_of_one_name_are_kept_apart(make: Make, store: Store, tmp_path: Path) -> None:
    other = Store(lambda: make(checkpoint=str(tmp_path / "other")), store.seen)
    for batch in range(2):
        for one in (store, other):
            one.make().commit(batch, one.prepare(batch, [f"{batch}"]))

    assert sorted(store.seen()) == ["0", "0", "1", "1"]


def test_a_log_whose_old_entries_are_deleted_with_a_checkpoint_takes_batches(make: Make, place: Path) -> None:
    deliver(make(), 0, {"n": pa.array([0])})
    DeltaTable(place).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 0 days", "delta.checkpointInterval": "2"}
    )
    for batch in range(1, 5):
        prepared = deliver(make(), batch, {"n": pa.array([batch])})
    DeltaTable(place).create_checkpoint()
    DeltaTable(place).cleanup_metadata()
    newest = DeltaTable(place).version()
    assert [one.name for one in sorted((place / "_delta_log").glob("*.json"))] == [f"{newest:020d}.json"]
    make().commit(4, prepared)

    assert sorted(values(place, "n")) == [0, 1, 2, 3, 4]


INSTEAD: dict[str, Callable[[Path], object]] = {
    "column n is string, and was int64": lambda place: write_deltalake(place, pa.table({"n": ["x"], "s": ["x"]})),
    "column s is missing, and was string": lambda place: write_deltalake(place, pa.table({"n": [7]})),
    "column n may not be null": lambda place: DeltaTable.create(
        str(place), pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())])
    ),
    "column m may not be null": lambda place: DeltaTable.create(
        str(place), pa.schema([("n", pa.int64()), ("s", pa.string()), pa.field("m", pa.int64(), nullable=False)])
    ),
    "it is divided by s": lambda place: write_deltalake(place, pa.table({"n": [7], "s": ["x"]}), partition_by=["s"]),
}


@pytest.mark.parametrize("said", INSTEAD)
def test_a_table_that_another_writer_makes_between_vote_and_commit_takes_no_files_that_do_not_fit(
    make: Make, place: Path, said: str
) -> None:
    columns = {"n": pa.array([1, None], pa.int64()), "s": pa.array(["a", "b"])}
    prepared = [make().prepare(Transaction.new("orders", 0, 0), iter([pa.record_batch(columns)]))]
    INSTEAD[said](place)
    before = table(place)
    with pytest.raises(SinkError, match=r"was changed after the files of this batch were written") as refused:
        make().commit(0, prepared)
    assert said in refused.value.message
    assert table(place).equals(before)

    # As the error says: the table is changed back, and takes the batch.
    shutil.rmtree(place / "_delta_log")
    make().commit(0, prepared)
    assert values(place, "n") == [1, None]


def test_a_type_that_changes_between_vote_and_commit_is_an_error_until_it_changes_back(
    make: Make, store: Store, place: Path
) -> None:
    store.make().commit(0, store.prepare(0, ["a"]))
    prepared = store.prepare(1, ["b"])
    write_deltalake(place, pa.table({"value": [7]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SinkError, match="column value is int64, and was string; change the table back"):
        store.make().commit(1, prepared)
    write_deltalake(place, pa.table({"value": ["seven"]}), mode="overwrite", schema_mode="overwrite")
    store.make().commit(1, prepared)

    assert sorted(store.seen()) == ["b", "seven"]


@pytest.mark.parametrize("feature", ["allowColumnDefaults", "typeWidening", "inCommitTimestamp", "fromTheFuture"])
def test_a_feature_that_deltalake_does_not_write_is_refused_before_the_vote(
    make: Make, place: Path, feature: str
) -> None:
    deliver(make(), 0, {"n": pa.array([1])})
    readers = [feature] if feature == "typeWidening" else []
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": readers, "writerFeatures": [feature]}
    entry = place / "_delta_log" / f"{DeltaTable(place).version() + 1:020d}.json"
    entry.write_text(json.dumps({"protocol": protocol}))

    assert f"has the feature {feature}, which this sink does not keep" in refuses(make(), {"n": pa.array([1])}, 1)


def test_times_that_python_does_not_know_are_written_and_divide_no_table(make: Make, place: Path) -> None:
    moments = pa.array([-(10**17), 10**18], pa.int64()).cast(pa.timestamp("us", "UTC"))
    days = pa.array([-800_000, 3_000_000], pa.int32()).cast(pa.date32())
    deliver(make(), 0, {"n": pa.array([1, 2]), "at": moments, "day": days})

    found = DeltaTable(place).to_pyarrow_dataset()
    rows = found.to_table(filter=pc.field("n") == 2)
    assert rows.column("at").cast(pa.int64()).to_pylist() == [10**18]
    assert rows.column("day").cast(pa.int32()).to_pylist() == [3_000_000]
    assert found.to_table(filter=pc.field("at") > pa.scalar(datetime(2026, 1, 1, tzinfo=UTC))).num_rows == 1
    other = DeltaSink(f"{place}/divided", checkpoint=f"{place}/other", name="orders", partition_by="day")
    assert "day divides the table, and has a date before the year 1" in refuses(other, {"n": [1, 2], "day": days})


def test_a_text_that_is_no_text_is_refused_before_the_vote(make: Make) -> None:
    for bad in (b"\xff", b"\xed\xa0\x80"):
        column = texts(b"good", bad, b"better")
        assert "column s has a text that is no UTF-8" in refuses(make(), {"s": column})
        nested = pa.StructArray.from_arrays([column], ["inner"])
        assert "column s has a text that is no UTF-8" in refuses(make(), {"s": nested})


def test_an_empty_text_is_no_value_of_a_partition_that_may_not_be_null(make: Make, place: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string(), nullable=False)])
    DeltaTable.create(str(place), schema, partition_by=["s"])

    said = refuses(make(), {"n": pa.array([1, 2]), "s": pa.array(["x", ""])})
    assert "column s divides the table and may not be null there, and a row has an empty text" in said
    make().abort(make().recover())
    assert list(place.glob("*.parquet")) == []


def test_a_batch_of_more_partitions_than_files_may_be_open(
    make: Make, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.sinks.stores.table_rows.MOST_OPEN", 3)
    columns = {"n": pa.array(range(20)), "s": pa.array([f"{number % 10}" for number in range(20)])}
    assert "s shall divide the table twice" in refuses(make(partition_by="s,s"), columns)
    deliver(make(partition_by="s"), 0, columns)

    rows = {(row["n"], row["s"]) for row in table(place).to_pylist()}
    assert rows == {(number, f"{number % 10}") for number in range(20)}


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
