"""Which batches of a receiver's query are on the disk, and which run again after a loss of power."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.conftest import Checkpoint
from wallaroo_spark.checkpoint import CheckpointFiles, power_loss
from wallaroo_spark.checkpoint.power_loss import Synced, SyncedBatches, SyncedMark, begin_batch
from wallaroo_spark.errors import CheckpointError


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the machine says which run of it this is."""
    file = tmp_path / "boot_id"
    file.write_text("first run\n")
    monkeypatch.setattr(power_loss, "BOOT", file)
    return file


def sink_log(folder: Path, *names: str) -> Path:
    """The log of a file sink, with an entry for each name and its checksum."""
    log = folder / "rows" / "_spark_metadata"
    log.mkdir(parents=True)
    for name in names:
        (log / name).write_text("v1")
        (log / f".{name}.crc").write_text("crc")
    return log


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_after_a_loss_of_power_only_the_batch_that_was_not_synced_runs_again(
    checkpoint: Checkpoint, tmp_path: Path, machine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, log = str(checkpoint.folder), sink_log(tmp_path, "7", "8", "9.compact", "10")
    for batch in (8, 9, 10):
        checkpoint.run(batch)
    SyncedMark(folder).write(8)

    machine.write_text("second run\n")
    SyncedBatches(folder, [str(tmp_path / "rows")]).begin()

    assert names(checkpoint.folder / "commits") == ["8"]
    assert names(checkpoint.folder / "offsets") == ["10", "8", "9"]
    assert names(log) == [".7.crc", ".8.crc", "7", "8"]
    assert SyncedMark(folder).read() == Synced(8, "second run")
    assert "commits/9" in caplog.text


def test_after_the_death_of_a_driver_no_batch_runs_again(checkpoint: Checkpoint, tmp_path: Path, machine: Path) -> None:
    """What a process has written is there, also if it was not synced."""
    folder, log = str(checkpoint.folder), sink_log(tmp_path, "8", "9")
    for batch in (8, 9):
        checkpoint.run(batch)
    SyncedMark(folder).write(8)

    SyncedBatches(folder, [str(tmp_path / "rows")]).begin()

    assert names(checkpoint.folder / "commits") == ["8", "9"]
    assert len(names(log)) == 4
    assert SyncedMark(folder).read() == Synced(9, "first run")


def test_a_query_that_begins_with_the_option_keeps_all_batches_of_before(checkpoint: Checkpoint, machine: Path) -> None:
    checkpoint.run(8)
    files = CheckpointFiles(str(checkpoint.folder))
    first = power_loss.synced_batches(files, wanted=True, sink="", spark=None)
    assert first is not None
    first.begin()
    # Then it runs without the option, and the machine is started again.
    assert power_loss.synced_batches(files, wanted=False, sink="", spark=None) is None
    for batch in (9, 10):
        checkpoint.run(batch)
    machine.write_text("second run\n")
    again = power_loss.synced_batches(files, wanted=True, sink="", spark=None)
    assert again is not None
    again.begin()

    assert CheckpointFiles(str(checkpoint.folder)).committed() == 10
    assert SyncedMark(str(checkpoint.folder)).read() == Synced(10, "second run")


def test_everything_is_synced_before_the_mark_is_written(
    checkpoint: Checkpoint, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(checkpoint.folder)
    seen: list[Synced | None] = []
    monkeypatch.setattr(power_loss, "sync_file_system", lambda path: seen.append(SyncedMark(folder).read()))
    batches = SyncedBatches(folder)
    batches.begin()
    checkpoint.run(0)
    for _ in range(2):
        batches.sync(0)

    assert seen == [None, Synced(-1, "first run")]
    assert SyncedMark(folder).read() == Synced(0, "first run")


def test_a_disk_that_cannot_be_synced_is_an_error_and_no_mark_is_written(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(power_loss, "sync_file_system", fails)
    with pytest.raises(CheckpointError, match=r"cannot be synced.*Input/output error") as caught:
        SyncedBatches(str(checkpoint.folder)).begin()
    assert caught.value.code == "checkpoint-unwritable"
    assert SyncedMark(str(checkpoint.folder)).read() is None


def test_a_batch_waits_until_the_one_before_it_is_synced(checkpoint: Checkpoint, machine: Path) -> None:
    folder = str(checkpoint.folder)
    checkpoint.run(4)
    checkpoint.plan(5)
    SyncedMark(folder).write(3)
    with pytest.raises(CheckpointError, match=r"batch 5 waits .* after 0.01 s batch 3 is synced") as caught:
        begin_batch(folder, 0.01)
    assert caught.value.code == "sync-late"

    SyncedMark(folder).write(4)
    begin_batch(folder, 0.01)
