"""The files of a batch and its manifest."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.streams.samples import ORDERS, event, output, outputs, records, rows_of
from wallaroo_spark.errors import CheckpointError, PipelineError
from wallaroo_spark.streams.batch_outputs import (
    BatchOutputs,
    Manifest,
    OutputFile,
    manifest_of,
    output_writer,
    write_outputs,
)
from wallaroo_spark.streams.rows import OutputKind, as_events

BEGAN = {"pipeline": "shop/fulfil", "partition": 0, "instance": 1, "kind": "began", "at": 0}
CARRIED = {"stream": ORDERS, "partition": 1, "rank": 1, "origin": "shop/orders/0", "sequence": 1, "place": 0}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "application")


def test_the_outputs_of_many_keys_become_few_files(folder: str) -> None:
    given = outputs(
        records(1, 2),
        records(5, 6, partition=1),
        records(3, 4),
        rows_of(OutputKind.HISTORY, [BEGAN]),
        rows_of(OutputKind.HISTORY, [{**BEGAN, "instance": 2}], partition=1),
        rows_of(OutputKind.CARRIED, [{**CARRIED, "event": b"one"}]),
        rows_of(OutputKind.CARRIED, [{**CARRIED, "sequence": 2, "event": b"two"}], partition=1),
        rows_of(OutputKind.OUTBOX, [{"instruction": b"a", "records": None}], target="g0"),
        rows_of(OutputKind.OUTBOX, [{"instruction": b"b", "records": b"r"}], target="g1"),
        rows_of(OutputKind.OUTBOX, [{"instruction": b"c", "records": None}], target="g0", partition=1),
    )
    store = BatchOutputs(folder)
    store.seal(manifest_of(7, write_outputs(folder, 7, given), None))
    found = store.manifest(7)
    assert found is not None

    assert [(file.key, file.first, file.last, file.rows) for file in found.of(OutputKind.RECORDS)] == [
        ((ORDERS, 0), 1, 4, 4),
        ((ORDERS, 1), 5, 6, 2),
    ]
    first = pq.ParquetFile(store.file_of(7, found.of(OutputKind.RECORDS)[0].name)).read()
    assert as_events(first) == tuple(event(offset) for offset in (1, 2, 3, 4))
    (history,) = found.of(OutputKind.HISTORY)
    path = store.file_of(7, history.name)
    assert pq.ParquetFile(path).read().column("instance").to_pylist() == [1, 2]
    assert Path(path).stat().st_size == history.bytes
    (carried,) = found.of(OutputKind.CARRIED)
    assert [row["event"] for rows in store.open(carried) for row in rows.to_pylist()] == [b"one", b"two"]
    outboxes = {file.target: file for file in found.of(OutputKind.OUTBOX)}
    assert [row["instruction"] for rows in store.open(outboxes["g0"]) for row in rows.to_pylist()] == [b"a", b"c"]
    assert found.of(OutputKind.OUTBOX, "g1") == (outboxes["g1"],)


def test_a_task_without_outputs_writes_no_file(folder: str) -> None:
    assert list(write_outputs(folder, 7, outputs())) == []
    assert not Path(folder).exists()


def test_offsets_with_a_hole_end_the_batch(folder: str) -> None:
    with pytest.raises(PipelineError, match="records from offset 4 follow offset 2") as caught:
        list(write_outputs(folder, 7, outputs(records(1, 2), records(4, 4))))
    assert caught.value.code == "offsets-not-consecutive"


def test_timers_are_kept_from_batch_to_batch_until_they_are_replaced(folder: str) -> None:
    def after(before: Manifest | None, *timers: tuple[int, int | None]) -> Manifest:
        rows = [output(OutputKind.TIMER, partition=partition, first=at) for partition, at in timers]
        return manifest_of(1, write_outputs(folder, 1, outputs(*rows)), before)

    armed = after(None, (0, 500), (1, 900))
    assert armed == Manifest(1, (), {f"{ORDERS}/0": 500, f"{ORDERS}/1": 900})
    assert dict(after(armed, (0, None), (1, 950), (2, None)).timers) == {f"{ORDERS}/1": 950}
    assert after(armed).timers == armed.timers


def test_a_batch_that_runs_again_replaces_its_manifest(folder: str) -> None:
    store = BatchOutputs(folder)
    for _ in range(2):
        manifest = manifest_of(7, write_outputs(folder, 7, outputs(records(1, 2))), None)
        store.seal(manifest)
    assert store.manifest(7) == manifest
    assert len(list(Path(folder, "_wallaroo/batches/7").iterdir())) == 2
    assert (store.manifest(8), store.sealed()) == (None, [7])


def test_a_task_returns_its_files_as_text(folder: str) -> None:
    (found,) = output_writer(folder, 7)(iter(outputs(records(1, 2), output(OutputKind.TIMER, first=5))))
    files = [OutputFile.from_json(text) for text in found.column("file").to_pylist()]
    assert [(file.kind, file.first) for file in files] == [(OutputKind.RECORDS, 1), (OutputKind.TIMER, 5)]


def test_a_batch_that_is_not_kept_is_refused(folder: str) -> None:
    store = BatchOutputs(folder)
    for batch in (1, 2):
        store.seal(manifest_of(batch, write_outputs(folder, batch, outputs(rows_of(OutputKind.CARRIED, []))), None))
    old = store.manifest(1)
    assert old is not None
    store.keep_from(2)
    assert (store.sealed(), store.kept_from()) == ([2], 2)
    for read in (lambda: store.manifest(1), lambda: list(store.open(old.files[0]))):
        with pytest.raises(PipelineError, match="batch 1 are no longer kept"):
            read()


def test_a_damaged_manifest_is_named(folder: str) -> None:
    store = BatchOutputs(folder)
    store.seal(Manifest(3))
    Path(folder, "_wallaroo/batches/3.json").write_text('{"version": 99}')
    with pytest.raises(CheckpointError, match=r"batches/3.json is damaged.*version 99"):
        store.manifest(3)
