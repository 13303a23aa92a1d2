"""Records are read by their offsets, from tables and from committed batches that are not moved yet."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyarrow import fs

from tests.streams.application import ApplicationFiles, StreamTable, some_batches
from tests.streams.samples import ORDERS, event, records
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.streams import table_files
from wallaroo_spark.streams.batch_outputs import BatchOutputs
from wallaroo_spark.streams.mover import TableMover


@pytest.fixture
def app(tmp_path: Path) -> ApplicationFiles:
    return ApplicationFiles(tmp_path / "application")


def events(first: int, last: int) -> tuple[CloudEvent, ...]:
    return tuple(event(offset) for offset in range(first, last + 1))


@pytest.mark.parametrize("moved", [None, 0, 1, 3])
def test_records_are_read_wherever_they_are(app: ApplicationFiles, moved: int | None) -> None:
    some_batches(app)
    if moved is not None:
        TableMover(app.location).move(moved)
    table = StreamTable(app.location, ORDERS)
    assert table.read(0, 1) == (1, events(1, 10))
    assert table.read(0, 3, 7) == (3, events(3, 7))
    assert table.read(0, 4, 5) == (4, events(4, 5))
    assert table.read(0, 9, 58) == (9, events(9, 10))
    assert table.read(0, 11, 12) == (11, ())
    assert table.read(1, 1, 2) == (1, events(1, 2))
    assert table.read(2, 1) == (1, ())
    assert (table.oldest(0), table.oldest(2)) == (1, None)


def test_records_of_a_batch_are_read_once_it_is_committed(app: ApplicationFiles) -> None:
    table = StreamTable(app.location, ORDERS)
    assert table.read(0, 1) == (1, ())
    app.seal(records(1, 2))
    assert table.read(0, 1) == (1, ())
    app.commit(records(1, 2))
    assert table.read(0, 1) == (1, events(1, 2))
    app.seal(records(3, 4))
    assert table.read(0, 1, 4) == StreamTable(app.location, ORDERS).read(0, 1, 4) == (1, events(1, 2))
    app.commit(records(3, 4))
    app.commit(records(5, 6))
    assert table.read(0, 4, 12) == (4, events(4, 6))


def test_a_reader_follows_moves_and_deletions(app: ApplicationFiles) -> None:
    table, mover = StreamTable(app.location, ORDERS), TableMover(app.location)
    for batch in range(12):
        app.commit(records(batch + 1, batch + 1))
        assert table.read(0, 1) == (1, events(1, batch + 1))
        if batch % 3 == 2:
            mover.move(batch)
            BatchOutputs(app.location).keep_from(batch)
    mover.expire(ORDERS, 0, 6)
    row_group_free = StreamTable(app.location, ORDERS)
    assert row_group_free.read(0, 1) == (4, events(4, 12))
    assert row_group_free.oldest(0) == 4
    mover.expire(ORDERS, 0, 13)
    assert StreamTable(app.location, ORDERS).read(0, 1) == (1, ())


def test_a_file_that_is_deleted_behind_a_reader_moves_its_first_record(app: ApplicationFiles) -> None:
    mover = TableMover(app.location)
    for batch in range(3):
        app.commit(records(batch + 1, batch + 1))
        mover.move(batch)
    table = StreamTable(app.location, ORDERS)
    assert table.read(0, 2, 2) == (2, events(2, 2))
    mover.expire(ORDERS, 0, 2)
    assert table.read(0, 1, 3) == (2, events(2, 3))


def test_a_read_ends_soon_behind_its_bytes(app: ApplicationFiles) -> None:
    app.commit(records(1, 400))
    table = StreamTable(app.location, ORDERS)
    size = sum(one.size for one in events(1, 100))
    first, found = table.read(0, 1, most_bytes=size)
    assert (first, found) == (1, events(1, len(found)))
    assert 100 <= len(found) <= 102
    assert len(table.read(0, 1, most_bytes=1)[1]) == 16
    assert len(table.read(0, 1, 20, most_bytes=size)[1]) == 20


def test_the_rows_of_a_large_file_are_read_by_row_groups(
    app: ApplicationFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wallaroo_spark.streams.batch_outputs.GROUP_ROWS", 4)
    monkeypatch.setattr(table_files, "_KEPT_BYTES", 1)
    app.commit(records(1, 10))
    app.commit(records(11, 30))
    TableMover(app.location).move(1)
    table = StreamTable(app.location, ORDERS)
    for first, last in ((1, 30), (4, 5), (8, 9), (12, 12), (3, 29)):
        assert table.read(0, first, last) == (first, events(first, last))


def test_a_missing_file_is_an_error_and_no_hole(app: ApplicationFiles) -> None:
    mover = TableMover(app.location)
    for batch in range(3):
        app.commit(records(batch + 1, batch + 1))
        mover.move(batch)
    app.files()[1].unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        StreamTable(app.location, ORDERS).read(0, 1)


def test_a_read_of_known_records_lists_no_folder(app: ApplicationFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_KEPT_BYTES", 1)
    some_batches(app)
    mover = TableMover(app.location)
    mover.move(1)
    table = StreamTable(app.location, ORDERS)
    assert table.read(0, 1, 10) == (1, events(1, 10))
    listed: list[str] = []
    selector = fs.FileSelector

    def noted(path: str, **options: bool) -> fs.FileSelector:
        listed.append(path)
        return selector(path, **options)

    monkeypatch.setattr(fs, "FileSelector", noted)
    app.commit(records(11, 12))
    mover.move(3)
    assert table.read(0, 2, 12) == (2, events(2, 12))
    assert table.read(0, 4, 12) == (4, events(4, 12))
    assert [path for path in listed if "/streams/" in path or "/batches" in path] == []


def test_readers_see_every_record_while_batches_are_written_moved_and_deleted(app: ApplicationFiles) -> None:
    last, failures, done = 40, list[BaseException](), threading.Event()

    def read() -> None:
        table, seen = StreamTable(app.location, ORDERS), 0
        try:
            while seen < last:
                stop = done.is_set()
                first, found = table.read(0, max(1, seen - 5))
                assert found == events(first, first + len(found) - 1)
                assert first + len(found) - 1 >= seen
                seen = first + len(found) - 1
                assert not stop or seen == last
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    mover, outputs = TableMover(app.location), BatchOutputs(app.location)
    for batch in range(last):
        app.commit(records(batch + 1, batch + 1))
        if batch % 4 == 3:
            mover.move(batch)
            outputs.keep_from(batch - 2)
            mover.expire(ORDERS, 0, batch - 20)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
