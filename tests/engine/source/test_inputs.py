"""The files of an application as the source sees them: cheap looks, holes, and what is missing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.checkpoint.conftest import offset, offsets_text
from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower
from wallaroo_spark.engine.source.datasource import InputReader
from wallaroo_spark.engine.source.inputs import InputFiles
from wallaroo_spark.engine.source.plan import InputOffset, MadeRows, next_offset
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import PortableLocation, within
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest
from wallaroo_spark.streams.inbox import InboxPosition, InboxReader, InboxWriter
from wallaroo_spark.streams.places import checkpoint_of

KEY = PartitionKey("shop/orders", 0)


def committed(folder: Path, batch: int, timers: dict[str, int] | None = None) -> None:
    """Write a manifest and the files of Spark for a committed batch."""
    BatchOutputs(str(folder)).seal(Manifest(batch, (), timers or {}))
    for log, text in (("offsets", offsets_text(offset({}))), ("commits", 'v1\n{"nextBatchWatermarkMs":0}')):
        (folder / "checkpoint" / log).mkdir(parents=True, exist_ok=True)
        (folder / "checkpoint" / log / str(batch)).write_text(text)


def wrote(folder: Path, files: int) -> InboxWriter:
    writer = InboxWriter(str(folder), "g0")
    writer.open()
    for _ in range(files):
        writer.write([(KEY, b"event")])
    return writer


def test_the_newest_committed_manifest_has_the_timers(tmp_path: Path) -> None:
    source = InputFiles(str(tmp_path))
    assert (source.look(InputOffset()).first_timer, dict(source.look(InputOffset()).carried)) == (None, {})

    committed(tmp_path, 0, {"shop/orders/0": 7, "shop/orders/1": 5})
    assert source.look(InputOffset()).first_timer == 5
    committed(tmp_path, 1, {"shop/orders/0": 9})
    inputs = source.look(InputOffset())
    assert (inputs.first_timer, dict(inputs.carried)) == (9, {0: 0, 1: 0})
    end = next_offset(InputOffset(), inputs, 10)
    assert [row.partitions for row in source.content(InputOffset(), end) if isinstance(row, MadeRows)] == [(0,)]


def test_a_committed_batch_without_a_manifest_is_an_error(tmp_path: Path) -> None:
    committed(tmp_path, 0)
    SidecarFolder(str(tmp_path), "batches").delete("0.json")
    with pytest.raises(CheckpointError, match="batch 0 is committed and has no manifest"):
        InputFiles(str(tmp_path)).look(InputOffset())


def test_a_file_that_was_deleted_by_hand_ends_the_query(tmp_path: Path) -> None:
    wrote(tmp_path, 3)
    folder = SidecarFolder(str(tmp_path), "inbox", "g0", f"{1:020d}")
    folder.delete(folder.names()[1])
    reader = InputReader(str(tmp_path), 10)

    with pytest.raises(CheckpointError, match="gateway g0 lacks file 2 of generation 1") as caught:
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert caught.value.code == "inbox-missing"


def test_a_planned_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    wrote(tmp_path, 2)
    end = InputOffset({"g0": InboxPosition(1, 3)})
    with pytest.raises(CheckpointError, match="gateway g0 lacks file 3"):
        InputFiles(str(tmp_path)).content(InputOffset(), end)


def test_an_error_that_may_pass_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote(tmp_path, 1)
    reader = InputReader(str(tmp_path), 10)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    clock = [100.0]
    monkeypatch.setattr("wallaroo_spark.engine.source.datasource.time", SimpleNamespace(monotonic=lambda: clock[0]))
    look = InputFiles.look

    def fails(files: InputFiles, offset: InputOffset) -> None:
        raise CheckpointError("the file system does not answer", code="checkpoint-unreadable")

    monkeypatch.setattr(InputFiles, "look", fails)
    assert reader.latestOffset(start, limit) is start
    clock[0] += 59
    assert reader.latestOffset(start, limit) is start
    monkeypatch.setattr(InputFiles, "look", look)
    clock[0] += 2
    assert reader.latestOffset(start, limit)["inbox"] == {"g0": {"generation": 1, "sequence": 1}}
    monkeypatch.setattr(InputFiles, "look", fails)
    assert reader.latestOffset(start, limit) is start
    clock[0] += 60
    with pytest.raises(CheckpointError, match="does not answer"):
        reader.latestOffset(start, limit)


def test_after_an_error_the_commit_log_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(tmp_path, 0)
    long_ago = time.time() - 60
    os.utime(tmp_path / "checkpoint" / "commits", (long_ago, long_ago))
    look = CommitFollower(CheckpointFiles(checkpoint_of(str(tmp_path))))

    def fails(files: CheckpointFiles) -> None:
        raise CheckpointError("the file system does not answer", code="checkpoint-unreadable")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFiles, "committed", fails)
        with pytest.raises(CheckpointError):
            look.newest()
    assert look.newest() == 0


def test_the_offsets_of_a_batch_are_read_as_they_stand(tmp_path: Path) -> None:
    committed(tmp_path, 3)
    files = CheckpointFiles(checkpoint_of(str(tmp_path)))

    assert files.source_offsets(4) == ()
    (found,) = files.source_offsets(3)
    assert found["receiver"] == "orders"
    (tmp_path / "checkpoint" / "offsets" / "5").write_text('v1\n{}\n{"inb')
    with pytest.raises(CheckpointError, match="has an offset that is not JSON"):
        files.source_offsets(5)


def test_a_folder_below_a_location_keeps_its_settings() -> None:
    there = PortableLocation("s3://bucket/app", {"region": "eu"})

    assert within("/app/", "a", "b") == "/app/a/b"
    assert within("/app?", "a") == "/app?/a"
    assert within("s3://bucket/app?region=eu", "a") == "s3://bucket/app/a?region=eu"
    assert within(there, "a") == PortableLocation("s3://bucket/app/a", {"region": "eu"})


def test_an_inbox_that_was_deleted_or_is_an_older_copy_ends_the_query_at_once(tmp_path: Path) -> None:
    for _ in range(3):
        wrote(tmp_path, 1)
    at = InputOffset({"g0": InboxPosition(3, 1)})
    InboxReader(str(tmp_path)).delete_read(at.inbox)
    reader = InputReader(str(tmp_path), 10)
    start, limit = at.to_json(), reader.getDefaultReadLimit()
    assert reader.latestOffset(start, limit) is start

    inbox = tmp_path / "_wallaroo" / "inbox"
    inbox.rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match="it has no claim, and the checkpoint has read generation 3") as caught:
        reader.latestOffset(start, limit)
    assert caught.value.code == "inbox-lost"

    wrote(tmp_path, 1)
    with pytest.raises(CheckpointError, match="its newest claim is of generation 1") as caught:
        reader.latestOffset(start, limit)
    assert caught.value.code == "inbox-lost"

    # The remedy of the message.
    Path(caught.value.message.rpartition("file://")[2]).touch()
    assert wrote(tmp_path, 1).generation == 4
    end = reader.latestOffset(start, limit)
    assert end["inbox"] == {"g0": {"generation": 4, "sequence": 1}}
