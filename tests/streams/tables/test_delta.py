"""Logs of Delta beside the tables, read by the package ``deltalake``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.streams.application import ApplicationFiles
from tests.streams.samples import ORDERS, forgotten, records
from tests.waiting import SECONDS
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.storage.locations import PortableLocation
from wallaroo_spark.streams import delta
from wallaroo_spark.streams.delta import DeltaLogs
from wallaroo_spark.streams.mover import TableMover
from wallaroo_spark.streams.rows import as_events


@pytest.fixture
def app(tmp_path: Path) -> ApplicationFiles:
    return ApplicationFiles(tmp_path / "an application")


def mover(app: ApplicationFiles) -> TableMover:
    return TableMover(app.location, delta=DeltaLogs(app.location))


def table(app: ApplicationFiles) -> DeltaTable:
    return DeltaTable(app.folder / "streams" / ORDERS)


def read(app: ApplicationFiles) -> list[tuple[int, int, str]]:
    """The partition, offset and id of each record that a reader of Delta sees."""
    rows = table(app).to_pyarrow_table()
    values = zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), as_events(rows), strict=True)
    return sorted((partition, offset, event.id) for partition, offset, event in values)


def test_a_reader_of_delta_sees_the_records_of_the_table(app: ApplicationFiles) -> None:
    one = mover(app)
    one.move(app.commit(records(1, 3), records(1, 2, partition=1)))
    app.commit(records(4, 4))
    one.move(app.commit(records(5, 6)))

    assert read(app) == app.table()
    assert len(app.table()) == 8
    assert table(app).to_pandas(filters=[("partition", "=", 1)])["offset"].tolist() == [1, 2]
    assert table(app).to_pandas(filters=[("id", "=", "e5")])["offset"].tolist() == [5]
    assert [field.name for field in table(app).schema().fields] == delta.SCHEMA.names
    assert table(app).transaction_version("wallaroo_spark") == 2


def test_a_move_that_is_repeated_adds_nothing(app: ApplicationFiles) -> None:
    mover(app).move(app.commit(records(1, 3)))
    version = table(app).version()
    (app.folder / "_wallaroo" / "tables" / "moved.json").unlink()
    mover(app).move(0)

    assert table(app).version() == version
    assert read(app) == app.table()


def test_files_that_expire_leave_the_log_before_they_are_deleted(
    app: ApplicationFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = mover(app)
    for first in (1, 3, 5):
        one.move(app.commit(records(first, first + 1)))
    seen: list[int] = []
    delete = one._tables.delete
    monkeypatch.setattr(one._tables, "delete", lambda path: [seen.append(len(table(app).file_uris())), delete(path)])
    assert one.expire(ORDERS, 0, 5) == 2

    assert seen == [1, 1]
    assert read(app) == app.table() == [(0, 5, "e5"), (0, 6, "e6")]


def test_a_deleted_stream_takes_its_log_with_it_and_one_of_its_name_begins_another(app: ApplicationFiles) -> None:
    one = mover(app)
    one.move(app.commit(records(1, 2)))
    before = table(app).metadata().id
    one.move(app.commit(forgotten(3)))
    assert not (app.folder / "streams" / ORDERS).exists()
    one.move(app.commit(records(3, 4)))

    assert read(app) == [(0, 3, "e3"), (0, 4, "e4")]
    assert table(app).metadata().id != before


def test_a_log_takes_over_the_files_that_were_moved_or_deleted_without_it(app: ApplicationFiles) -> None:
    TableMover(app.location).move(app.commit(records(1, 2)))
    mover(app).move(app.commit(records(3, 4), records(1, 1, partition=1)))
    assert read(app) == app.table()

    without = TableMover(app.location)
    without.move(app.commit(records(5, 6)))
    without.expire(ORDERS, 0, 3)
    assert mover(app).moved_to() == 2
    assert read(app) == app.table() == [(0, 3, "e3"), (0, 4, "e4"), (0, 5, "e5"), (0, 6, "e6"), (1, 1, "e1")]


def test_a_log_that_cannot_be_written_is_named_and_the_move_is_repeated(app: ApplicationFiles) -> None:
    log = app.folder / "streams" / ORDERS / "_delta_log"
    log.parent.mkdir(parents=True)
    log.write_text("no folder")
    one, batch = mover(app), app.commit(records(1, 2))
    with pytest.raises(CheckpointError, match="Delta log of stream shop/orders"):
        one.move(batch)
    log.unlink()
    one.move(batch)

    assert read(app) == app.table() == [(0, 1, "e1"), (0, 2, "e2")]


def test_a_driver_without_the_package_and_other_file_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("hdfs://name:8020/app", PortableLocation("abfss://c@account/app")):
        with pytest.raises(ConfigurationError, match="delta: logs are written to local folders and to s3a") as refused:
            DeltaLogs(place)
        assert refused.value.code == "delta-not-supported"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'wallaroo-spark\[delta\]'"):
        DeltaLogs("/data/app")


@pytest.mark.long
@pytest.mark.timeout(5 * SECONDS)
def test_a_mover_that_dies_at_any_step_leaves_no_file_twice_and_the_next_one_makes_log_and_table_agree(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.streams.tables.deaths", str(tmp_path), "delta"],
        capture_output=True,
        text=True,
        timeout=4 * SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    deaths = json.loads(ran.stdout)
    assert len(deaths) > 60
    for death in deaths:
        for log, files in death["logs_left"]:
            assert len(set(log)) == len(log)
            assert {*map(Path, log)} <= {*map(Path, files)}, death
        for log, files in death["logs_moved"]:
            assert sorted(map(Path, log)) == sorted(map(Path, files)), death
        assert death["again"] == [[0, 3, "e3"], [0, 4, "e4"]]
