"""The history of instances expires in whole files, and an active instance keeps what is behind its begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.streams.application import ApplicationFiles
from tests.streams.samples import NOON, rows_of
from wallaroo_spark.cli.durable.pipelines import newest_instances
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.streams.mover import HistoryExpiry, TableMover
from wallaroo_spark.streams.rows import OutputKind
from wallaroo_spark.streams.table_files import TableFolders


class History:
    """The history of an application: a file for each batch, one second after another."""

    def __init__(self, folder: Path) -> None:
        self.app = ApplicationFiles(folder)
        self._mover = TableMover(self.app.location)

    def batch(self, birth: int = 1, **kinds: list[int]) -> None:
        """A batch with steps of instances, by their kinds, in this order; it is moved alone."""
        at = (NOON + self.app.next * 1000) * 1000
        rows: list[dict[str, Any]] = [
            {"pipeline": "shop/fulfil", "partition": 0, "instance": one, "kind": kind, "at": at, "began_at": at}
            | {"birth": birth}
            | ({"outcome": "done"} if kind == "ended" else {})
            for kind, instances in kinds.items()
            for one in instances
        ]
        self._mover.move(self.app.commit(rows_of(OutputKind.HISTORY, rows)))

    def files(self) -> list[int]:
        """The batches whose files are there."""
        return sorted(int(path.name.partition("-")[0]) for path in (self.app.folder / "history").iterdir())

    def instances(self) -> list[int]:
        """The instances that a reader shows."""
        return sorted(one.instance for one in newest_instances(row for row in self.rows() if row["kind"] != "output"))

    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return [
            row for path in (self.app.folder / "history").iterdir() for row in pq.ParquetFile(path).read().to_pylist()
        ]

    def expiry(self) -> HistoryExpiry:
        return HistoryExpiry(TableFolders(self.app.location))


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "application")


def test_files_are_deleted_once_their_instances_have_ended_long_enough_ago(history: History) -> None:
    history.batch(began=[1, 2])
    history.batch(ended=[1], began=[3])
    history.batch(ended=[2, 3])
    history.batch(skipped=[4], began=[9])
    expiry = history.expiry()

    assert expiry.expire(NOON + 2000) == 0
    assert expiry.expire(NOON + 2001) == 3
    assert expiry.expire(NOON + 2001) == 0
    assert (history.files(), history.instances()) == ([3], [9])


def test_an_active_instance_keeps_its_file_and_all_newer_ones(history: History) -> None:
    history.batch(began=[1], ended=[1])
    history.batch(began=[2, 3])
    history.batch(ended=[3], began=[4])
    history.batch(ended=[4])
    expiry = history.expiry()

    assert expiry.expire(NOON + 60_000) == 1
    assert history.expiry().expire(NOON + 60_000) == 0
    assert (history.files(), history.instances()) == ([1, 2, 3], [2, 3, 4])
    history.batch(ended=[2])
    assert expiry.expire(NOON + 60_000) == 4
    assert history.files() == []


def test_an_instance_whose_begin_has_expired_is_not_shown_by_half(history: History) -> None:
    history.batch(began=[1])
    history.batch(began=[2])
    history.batch(output=[1], ended=[1])
    history.batch(began=[5])

    assert history.expiry().expire(NOON + 60_000) == 1
    assert (history.files(), history.instances()) == ([1, 2, 3], [2, 5])
    # A process that begins later knows the end of an instance, and not its begin.
    history.batch(ended=[2])
    assert history.expiry().expire(NOON + 60_000) == 2
    assert (history.files(), history.instances()) == ([3, 4], [5])


def test_an_end_that_stands_before_its_begin_in_a_file_counts(history: History) -> None:
    history.batch(ended=[1, 2], began=[2])

    assert history.expiry().expire(NOON + 1) == 1


def test_many_files_of_one_move_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    app = ApplicationFiles(tmp_path / "application")
    for number in range(12):
        at = (NOON + number) * 1000
        row = {"pipeline": "shop/fulfil", "partition": 0, "instance": number, "at": at}
        app.commit(rows_of(OutputKind.HISTORY, [{**row, "kind": "began"}, {**row, "kind": "ended"}]))
    TableMover(app.location, large=1).move(11)
    tables = TableFolders(app.location)

    assert [file.number for file in tables.listed_history()] == list(range(12))
    assert HistoryExpiry(tables).expire(NOON + 11) == 11


def test_a_file_that_cannot_be_read_is_named_and_looked_at_again(history: History) -> None:
    history.batch(began=[1], ended=[1])
    (path,) = (history.app.folder / "history").iterdir()
    content = path.read_bytes()
    path.write_bytes(b"no parquet")
    expiry = history.expiry()
    with pytest.raises(CheckpointError, match=path.name):
        expiry.expire(NOON + 1)
    path.write_bytes(content)
    assert expiry.expire(NOON + 1) == 1


def test_the_instances_of_a_pipeline_that_is_declared_anew_are_others(history: History) -> None:
    history.batch(began=[1])
    history.batch(ended=[1])
    history.batch(birth=3, began=[1])
    found = newest_instances(history.rows())
    assert [(one.birth, one.state) for one in found] == [(3, "active"), (1, "done")]
    assert history.expiry().expire(NOON + 100_000) == 2
    assert history.files() == [2]
