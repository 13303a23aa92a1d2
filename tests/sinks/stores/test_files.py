"""Rows reach files a folder at a time, and once."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

from tests.sinks.stores.checks import CHECKS, Store, name_of, refuses
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores.files import FORMATS, FilesSink


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "out put"


@pytest.fixture
def make(tmp_path: Path, place: Path) -> Callable[..., FilesSink]:
    settings = {"checkpoint": str(tmp_path / "checkpoint"), "name": "orders"}
    return lambda path=place, **more: FilesSink(str(path), **{**settings, **more})


def values(place: Path, format: str) -> list[str]:
    """The rows that a reader without knowledge of sinks finds there."""
    if not place.exists():
        return []
    found = dataset.dataset(place, format=format, schema=pa.schema([("value", pa.string())]))
    return [str(value) for value in found.to_table().column("value").to_pylist()]


@pytest.fixture(params=list(FORMATS))
def store(request: pytest.FixtureRequest, make: Callable[..., FilesSink], place: Path) -> Store:
    return Store(lambda: make(format=request.param), lambda: values(place, request.param))


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store) -> None:
    check(store)


def test_a_batch_is_a_folder_with_a_file_for_each_partition_that_has_rows(
    make: Callable[..., FilesSink], place: Path
) -> None:
    store = Store(make, list)
    make().commit(17, store.prepare(17, ["a"], [], ["b"]))

    names = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    folder = "batch=000000017"
    assert names == [f"{folder}/_wallaroo.json", f"{folder}/part-00000.parquet", f"{folder}/part-00002.parquet"]


def test_pieces_become_row_groups_of_a_size_worth_reading(make: Callable[..., FilesSink], place: Path) -> None:
    make().commit(0, Store(make, list).prepare(0, ["a"] * 99))

    assert parquet.ParquetFile(place / "batch=000000000" / "part-00000.parquet").metadata.num_row_groups == 1


def test_json_has_a_form_for_every_type(make: Callable[..., FilesSink], place: Path) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    columns = {
        "s": pa.array(["ä\n"]),
        "n": pa.array([None], pa.int32()),
        "f": pa.array([float("-inf")]),
        "g": pa.array([1.5]),
        "raw": pa.array([b"\xff"]),
        "price": pa.array([Decimal("1.50")]),
        "at": pa.array([at], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 2)]),
        "list": pa.array([[{"a": float("nan")}, None]]),
        "map": pa.array([[("k", b"v")]], pa.map_(pa.string(), pa.binary())),
    }
    sink = make(format="json")
    sink.commit(0, [sink.prepare(Transaction.new("orders", 0, 0), iter([pa.record_batch(columns)]))])

    (line,) = (place / "batch=000000000" / "part-00000.json").read_text().splitlines()
    assert json.loads(line) == {
        "s": "ä\n",
        "n": None,
        "f": "-Infinity",
        "g": 1.5,
        "raw": "/w==",
        "price": "1.50",
        "at": "2026-01-02T03:04:05+00:00",
        "day": "2026-01-02",
        "list": [{"a": "NaN"}, None],
        "map": {"k": "dg=="},
    }
    assert "column gap of type duration[us] cannot be written as JSON" in refuses(
        sink, {"gap": pa.array([1], pa.duration("us"))}, batch=1
    )


def test_a_crash_between_two_files_is_made_good(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = store.prepare(3, ["a"], ["b"], ["c"])

    def die(_: object) -> None:
        raise SystemExit

    monkeypatch.setattr("wallaroo_spark.sinks.stores.files.passed", die)
    with pytest.raises(SystemExit):
        store.make().commit(3, prepared)
    assert store.seen() == []
    monkeypatch.undo()

    store.make().commit(3, prepared)
    assert sorted(store.seen()) == ["a", "b", "c"]
    assert [path for path in (place / ".staging").rglob("*") if path.name != "orders"] == []


def test_two_drivers_that_are_told_the_same_commit_it_once(store: Store) -> None:
    for batch in range(5):
        prepared = store.prepare(batch, ["a"], ["b"], ["c"])
        with ThreadPoolExecutor(2) as drivers:
            told = [drivers.submit(store.make().commit, batch, prepared) for _ in range(2)]
            failed = [error for error in (one.exception() for one in told) if error is not None]
        # One may find its folder gone from under it: it is told again, as a driver is.
        store.make().commit(batch, prepared)
        assert all(isinstance(error, SinkError) for error in failed)
        assert sorted(store.seen()) == sorted(["a", "b", "c"] * (batch + 1))


def test_a_folder_of_another_program_is_a_vote_to_abort(
    make: Callable[..., FilesSink], place: Path, tmp_path: Path
) -> None:
    store = Store(make, list)
    make().commit(0, store.prepare(0, ["a"]))
    (place / "batch=000000001").mkdir()
    (place / "batch=000000002").mkdir()
    (place / "batch=000000002" / "_wallaroo.json").write_text("{")

    other = make(checkpoint=str(tmp_path / "another"))
    rows = {"value": ["x"]}
    assert "was written by sink orders of another query or of an older checkpoint" in refuses(other, rows)
    assert "is committed already" in refuses(make(), rows)
    assert "exists, and no sink has written it" in refuses(make(), rows, batch=1)
    assert "cannot be read" in refuses(make(), rows, batch=2)


def test_files_that_are_gone_after_the_decision_are_an_error(store: Store) -> None:
    prepared = store.prepare(0, ["a"], ["b"])
    store.make().abort([prepared[1].transaction])

    with pytest.raises(SinkError, match=r"the 1 rows of orders/0/1/\w+ cannot be committed, because .* is gone"):
        store.make().commit(0, prepared)
    assert store.seen() == []


def test_a_path_that_cannot_be_written_is_a_vote_to_abort(make: Callable[..., FilesSink], place: Path) -> None:
    place.write_text("a file")

    assert f"in {place}" in refuses(make(), {"value": ["a"]})


@pytest.mark.parametrize(
    "path",
    ["s3://bucket/out", "s3a://b/o", "gs://b/o", "abfss://c@a/o", "dbfs:/o", "/dbfs/o", "file:///Volumes/o", " "],
)
def test_object_stores_are_refused(make: Callable[..., FilesSink], path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"object stores copy file by file.* Spark's own sinks"):
        make(path)


def test_a_uri_of_a_local_path_is_one(make: Callable[..., FilesSink], place: Path) -> None:
    store = Store(lambda: make(f"file://{place}"), lambda: values(place, "parquet"))
    store.make().commit(0, store.prepare(0, ["a"]))

    assert store.seen() == ["a"]


def test_a_format_that_is_not_known_is_refused(make: Callable[..., FilesSink]) -> None:
    with pytest.raises(ConfigurationError, match="format: 'orc' is not one of parquet, json, arrow"):
        make(format="orc")
