"""Records of committed batches are moved into tables, each once, and old ones are deleted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams.application import ApplicationFiles, StreamTable, some_batches
from tests.streams.samples import NOON, ORDERS, forgotten, records, rows_of
from tests.waiting import SECONDS
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest, OutputFile
from wallaroo_spark.streams.mover import MovePlan, TableMover, plan_moves
from wallaroo_spark.streams.rows import OutputKind

BEGAN = {"pipeline": "shop/fulfil", "partition": 0, "instance": 1, "kind": "began", "at": 0}
EVERYTHING = [
    *((0, offset, f"e{offset}") for offset in range(1, 11)),
    *((1, offset, f"e{offset}") for offset in (1, 2)),
]


@pytest.fixture
def app(tmp_path: Path) -> ApplicationFiles:
    return ApplicationFiles(tmp_path / "application")


def test_records_are_in_the_table_once_their_batch_is_moved(app: ApplicationFiles) -> None:
    some_batches(app)
    mover = TableMover(app.location)
    assert (mover.moved_to(), app.table()) == (-1, [])
    mover.move(0)
    assert app.table() == EVERYTHING[:3]
    mover.move(3)
    mover.move(3)
    assert (mover.moved_to(), app.table()) == (3, EVERYTHING)
    assert TableMover(app.location).moved_to() == 3


def test_small_files_that_are_moved_together_become_one(app: ApplicationFiles) -> None:
    some_batches(app)
    TableMover(app.location).move(3)
    assert [path.name for path in app.files()] == [
        "00000000000000000001-00000000000000000010.parquet",
        "00000000000000000001-00000000000000000002.parquet",
    ]
    assert app.table() == EVERYTHING


def test_the_history_is_moved(app: ApplicationFiles) -> None:
    for _ in range(2):
        app.commit(rows_of(OutputKind.HISTORY, [BEGAN]))
    TableMover(app.location).move(0)
    TableMover(app.location).move(1)
    assert len(list((app.folder / "history").iterdir())) == 2


def test_batches_without_records_need_not_be_kept(app: ApplicationFiles) -> None:
    some_batches(app)
    mover = TableMover(app.location)
    mover.move(3)
    for _ in range(3):
        mover.move(app.commit())
    BatchOutputs(app.location).keep_from(6)
    again = TableMover(app.location)
    assert again.moved_to() == 5
    again.move(app.commit(records(11, 11)))
    assert app.table() == sorted([*EVERYTHING, (0, 11, "e11")])


def test_a_mover_that_dies_at_any_step_leaves_each_record_at_most_once_and_the_next_one_completes(
    tmp_path: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.streams.tables.deaths", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    deaths = json.loads(ran.stdout)
    assert len(deaths) > 40
    assert {len(death["left"]) for death in deaths} >= {0, 3, 10, 12}
    everything = [list(row) for row in EVERYTHING]
    for death in deaths:
        for table in (death["left"], death["moved"]):
            assert len({tuple(row[:2]) for row in table}) == len(table), table
            assert all(row in everything for row in table), table
        # Only the expiry deletes, and it deletes the oldest.
        assert [row for row in everything if row not in death["moved"]] == [
            row for row in everything[:3] if row not in death["moved"]
        ]
        assert [row for row in death["then"] if row[1] > 3 or row[0]] == everything[3:]
        assert death["again"] == [[0, 3, "e3"], [0, 4, "e4"]]


def test_a_file_that_is_missing_is_named(app: ApplicationFiles) -> None:
    app.commit(records(1, 3))
    (file,) = (app.folder / "_wallaroo/batches/0").iterdir()
    file.unlink()
    with pytest.raises(CheckpointError, match=r"0{19}1-0{19}3.parquet cannot be written"):
        TableMover(app.location).move(0)


def test_old_files_expire_as_a_whole(app: ApplicationFiles) -> None:
    mover = TableMover(app.location)
    for hour in range(4):
        app.commit(records(2 * hour + 1, 2 * hour + 2, written_at=NOON + hour))
        mover.move(hour)
    assert mover.expired(ORDERS, 0, NOON) is None
    assert mover.expired(ORDERS, 0, NOON + 2) == 5
    assert mover.expired(ORDERS, 1, NOON + 2) is None
    assert mover.expire(ORDERS, 0, 6) == 2
    assert [offset for _, offset, _ in app.table()] == [5, 6, 7, 8]
    assert mover.expired(ORDERS, 0, NOON + 9) == 9
    assert mover.expire(ORDERS, 0, 9) == 2
    assert (app.table(), mover.expired(ORDERS, 0, NOON + 9)) == ([], None)


def test_the_table_of_a_deleted_stream_is_deleted_and_a_stream_of_its_name_begins_a_new_one(
    app: ApplicationFiles,
) -> None:
    mover = TableMover(app.location)
    app.commit(records(1, 2), records(1, 1, partition=1), records(1, 1, stream="shop/other"))
    mover.move(0)
    app.commit(records(3, 4))
    app.commit(forgotten(5), forgotten(2, partition=1))
    mover.move(2)
    assert not (app.folder / "streams" / ORDERS).exists()
    assert app.table("shop/other") == [(0, 1, "e1")]

    mover.move(app.commit(records(5, 6)))
    assert app.table() == [(0, 5, "e5"), (0, 6, "e6")]


def test_records_of_a_deleted_stream_are_not_joined_with_those_of_the_next_one(app: ApplicationFiles) -> None:
    app.commit(records(1, 2))
    app.commit(forgotten(3))
    app.commit(records(3, 4))
    app.commit(records(5, 5))
    TableMover(app.location).move(3)

    assert app.table() == [(0, offset, f"e{offset}") for offset in (3, 4, 5)]
    assert StreamTable(app.location, ORDERS).read(0, 1)[0] == 3


def test_drafts_that_a_killed_driver_has_left_are_deleted_by_the_next_one(app: ApplicationFiles) -> None:
    app.commit(records(1, 2))
    TableMover(app.location).move(0)
    drafts = [app.folder / "_wallaroo" / name for name in ("tables/.plan.json.1f.tmp", "batches/.7.json.2e.tmp")]
    for draft in drafts:
        draft.write_text("{")
    TableMover(app.location).moved_to()
    BatchOutputs(app.location).folder.delete_drafts()

    assert not any(draft.exists() for draft in drafts)
    assert (app.folder / "_wallaroo" / "batches" / "0.json").exists()


def test_a_plan_joins_files_up_to_a_size_and_never_over_a_hole() -> None:
    def batch(number: int, first: int, last: int, size: int) -> Manifest:
        name, count = f"{number}.parquet", last - first + 1
        kind = OutputKind.RECORDS
        return Manifest(number, (OutputFile(number, kind, ORDERS, 0, "", name, count, size, first, last),))

    given = [
        batch(4, 1, 2, 40),
        batch(5, 3, 3, 40),
        batch(6, 4, 6, 40),
        batch(7, 7, 7, 10),
        batch(8, 9, 9, 1),
        batch(9, 10, 10, 400),
    ]
    plan = plan_moves(4, 9, given, large=100)
    assert [(move.first, move.last, [source for source, _ in move.sources]) for move in plan.moves] == [
        (1, 3, [4, 5]),
        (4, 7, [6, 7]),
        (9, 9, [8]),
        (10, 10, [9]),
    ]
    assert {move.key for move in plan.moves} == {PartitionKey(ORDERS, 0)}
    assert MovePlan.from_json(plan.to_json()) == plan
