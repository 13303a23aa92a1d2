"""What a machine that loses power leaves of a checkpoint, and commits that are reported once they are on the disk."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.checkpoint.conftest import Checkpoint
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.checkpoint import files as files_module
from wallaroo_spark.checkpoint.power_loss import forget_torn_files
from wallaroo_spark.errors import CheckpointError


def tear(path: Path, text: str = "") -> None:
    """Make a file what it is after a loss of power: a name with less content, and its checksum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.with_name(f".{path.name}.crc").write_text("")


def test_the_newest_files_that_are_not_whole_are_deleted_with_their_checksums(checkpoint: Checkpoint) -> None:
    checkpoint.run(0)
    checkpoint.run(1)
    tear(checkpoint.folder / "commits" / "2", 'v1\n{"next')
    tear(checkpoint.folder / "offsets" / "2", "v1\n{}\n{}")
    tear(checkpoint.folder / "offsets" / "3", 'v1\n{}\n{"wallaroo":')
    tear(checkpoint.folder / "offsets" / "4")

    assert sorted(forget_torn_files(str(checkpoint.folder))) == ["commits/2", "offsets/3", "offsets/4"]

    assert sorted(file.name for file in (checkpoint.folder / "commits").iterdir()) == ["0", "1"]
    assert sorted(file.name for file in (checkpoint.folder / "offsets").iterdir()) == [".2.crc", "0", "1", "2"]
    assert CheckpointFiles(str(checkpoint.folder)).committed() == 1
    assert forget_torn_files(str(checkpoint.folder)) == []


def test_a_query_that_had_just_begun_begins_anew(tmp_path: Path) -> None:
    tear(tmp_path / "metadata")
    tear(tmp_path / "offsets" / "0")

    assert sorted(forget_torn_files(str(tmp_path))) == ["metadata", "offsets/0"]
    assert forget_torn_files(str(tmp_path / "nothing")) == []


def test_snapshots_that_are_not_whole_are_deleted(tmp_path: Path) -> None:
    """Spark uploads them after the commit, and has the older snapshot and the changes since."""
    state = tmp_path / "state" / "0" / "1" / "default"
    (state / "SSTs").mkdir(parents=True)
    (state / "SSTs" / "000012-a.sst").write_bytes(b"content")

    def snapshot(name: str, metadata: str) -> None:
        with zipfile.ZipFile(state / name, "w") as archive:
            archive.writestr("metadata", metadata)

    def names(size: int, file: str = "000012-a.sst") -> str:
        return "v1\n" + json.dumps({"sstFiles": [{"dfsSstFileName": file, "sizeBytes": size}]})

    snapshot("1.zip", names(7))
    snapshot("2.zip", names(9))
    snapshot("3.zip", names(7, "000013-b.sst"))
    tear(state / "4.zip")
    (state / "5.zip").write_bytes((state / "1.zip").read_bytes()[:40])
    snapshot("6.zip", "another format")
    (state / "6.changelog").write_bytes(b"")

    assert sorted(forget_torn_files(str(tmp_path))) == [f"state/0/1/default/{number}.zip" for number in (2, 3, 4, 5)]


def test_a_commit_is_reported_once_it_is_on_the_disk(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fails(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    files = CheckpointFiles(str(checkpoint.folder), fsync=True)
    checkpoint.run(0)
    (checkpoint.folder / "commits" / ".0.crc").write_bytes(b"crc")
    monkeypatch.setattr(files_module, "sync", fails)
    with pytest.raises(CheckpointError, match="Input/output error"):
        files.committed()

    monkeypatch.setattr(files_module, "sync", synced.append)
    for _ in range(2):
        assert files.committed() == 0
    commits = str(checkpoint.folder / "commits")
    assert synced == [f"{commits}/0", f"{commits}/.0.crc", commits]
    assert CheckpointFiles(str(checkpoint.folder)).committed() == 0
    assert len(synced) == 3
