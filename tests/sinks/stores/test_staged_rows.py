"""Rows prepared beside the checkpoint are whole, are read only by name, and go when their batch is over."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.stores.staged_rows import StagedRows, file_of, transaction_of


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.int64())})


@pytest.fixture
def stage(tmp_path: Path) -> StagedRows:
    return StagedRows(str(tmp_path / "checkpoint"), "orders")


def read(stage: StagedRows, *prepared: Prepared) -> list[int]:
    return [value for piece in stage.read(prepared) for value in piece.column("value").to_pylist()]


def test_rows_of_several_partitions_come_back_in_order_and_from_another_process(stage: StagedRows) -> None:
    first = stage.write(Transaction("orders", 7, 0, "a"), [rows(1, 2), rows(3)])
    empty = stage.write(Transaction("orders", 7, 1, "b"), [])
    third = stage.write(Transaction("orders", 7, 2, "c"), [rows(4)])

    assert [one.rows for one in (first, empty, third)] == [3, 0, 1]
    assert read(pickle.loads(pickle.dumps(stage)), first, empty, third) == [1, 2, 3, 4]


def test_every_staged_attempt_is_found_and_no_other_file(stage: StagedRows, tmp_path: Path) -> None:
    stage.identity()
    attempts = [Transaction("orders", 7, 0, "a"), Transaction("orders", 7, 0, "b"), Transaction("orders", 8, 0, "c")]
    for transaction in attempts:
        stage.write(transaction, [rows(1)])
    (tmp_path / "checkpoint" / "_wallaroo" / "stages" / "orders" / "notes.txt").write_text("somebody's")

    assert sorted(stage.found(), key=lambda one: one.id) == attempts
    stage.drop([attempts[0], Transaction("orders", 9, 9, "unknown")])
    stage.clear(7)
    assert stage.found() == [attempts[2]]


def test_an_identity_stays_with_its_checkpoint_and_goes_with_it(stage: StagedRows, tmp_path: Path) -> None:
    identity = stage.identity()

    assert StagedRows(str(tmp_path / "checkpoint"), "orders").identity() == identity
    assert StagedRows(str(tmp_path / "checkpoint"), "others").identity() != identity
    assert StagedRows(str(tmp_path / "another"), "orders").identity() != identity


def test_rows_that_are_gone_or_cut_are_an_error_that_counts_them(stage: StagedRows, tmp_path: Path) -> None:
    whole = stage.write(Transaction("orders", 7, 0, "a"), [rows(*range(1000)) for _ in range(9)])
    path = tmp_path / "checkpoint" / "_wallaroo" / "stages" / "orders" / file_of(whole.transaction)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    with pytest.raises(SinkError, match=r"of 9000 rows of orders/7/0/a can be read .* restore that folder"):
        read(stage, whole)
    stage.drop([whole.transaction])
    with pytest.raises(SinkError, match="0 of 9000 rows"):
        read(stage, whole)


def test_a_file_that_ends_between_two_pieces_is_noticed(stage: StagedRows) -> None:
    short = stage.write(Transaction("orders", 7, 0, "a"), [rows(1), rows(2)])

    with pytest.raises(SinkError, match=r"2 of 3 rows .* ends too early"):
        read(stage, Prepared(short.transaction, 3))


@pytest.mark.parametrize("name", ["7.0.a.arrow.crc", "07.0.a.arrow", "7.0.arrow", "identity", "7.0.A.arrow"])
def test_other_files_name_no_transaction(name: str) -> None:
    assert transaction_of("orders", name) is None
