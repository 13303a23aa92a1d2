"""A durably written file is on the disk with its name, also on mounts that do not support sync."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from wallaroo_spark.pubsub.publishing.topic_log import TopicLog
from wallaroo_spark.sidecar import durable
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.server.output_directory import OutputDirectory
from wallaroo_spark.sinks.stores.staged_rows import StagedRows

LOCAL = fs.LocalFileSystem()
ROWS = pa.record_batch({"value": [b"one", b"two"]})


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the disk was asked to hold, in order."""
    asked: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return asked


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store that looks like a folder: it has nothing to sync, and no hard links."""

    def invalid(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fsync", invalid)
    monkeypatch.setattr(os, "link", refuse)


def test_a_new_file_and_its_name_are_synced(tmp_path: Path, synced: list[str]) -> None:
    durable.write_file(LOCAL, str(tmp_path / "file"), b"data")

    assert synced == [str(tmp_path / "file"), str(tmp_path)]


def test_every_folder_that_is_made_is_synced_in_the_one_above_it(tmp_path: Path, synced: list[str]) -> None:
    durable.make_folder(LOCAL, str(tmp_path / "a" / "b"))
    durable.make_folder(LOCAL, str(tmp_path / "a" / "b"))

    assert sorted(synced) == [str(tmp_path), str(tmp_path / "a")]


def test_a_file_whose_write_fails_does_not_count_as_durable(tmp_path: Path, synced: list[str]) -> None:
    def fail() -> None:
        with durable.new_file(LOCAL, str(tmp_path / "file")) as stream:
            stream.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()

    assert synced == []


def test_rows_of_a_topic_are_synced_with_their_name(tmp_path: Path, synced: list[str]) -> None:
    file = TopicLog(str(tmp_path), "rows").stage(7, 0, 0, [ROWS], None)

    assert file is not None
    folder = tmp_path / "_wallaroo" / "topics" / "rows" / "7"
    assert synced[-2:] == [str(folder / file.name), str(folder)]


@pytest.mark.usefixtures("mount")
def test_a_mount_takes_rows_of_sinks_and_topics(tmp_path: Path) -> None:
    log, staged = TopicLog(str(tmp_path), "rows"), StagedRows(str(tmp_path), "orders")
    file = log.stage(7, 0, 0, [ROWS], None)
    prepared = staged.write(Transaction("orders", 7, 0, "a"), [ROWS])

    assert file is not None
    assert [rows for _, rows in log.messages(7, file)] == [ROWS]
    assert list(staged.read([prepared])) == [ROWS]


@pytest.mark.usefixtures("mount")
def test_a_mount_takes_the_directory_of_a_sink_server(tmp_path: Path) -> None:
    directory = OutputDirectory(tmp_path / "served")
    part = directory.begin("orders-0")
    part.write([b"one\n"])

    assert directory.prepare(part, "orders/0/0/a", 0, 4) == ""
    directory.decide("orders-0", "orders/0/0/a", True)
    directory.close()
    assert directory.output("orders-0").read_bytes() == b"one\n"


def test_a_disk_that_fails_to_sync_is_no_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        durable.write_file(LOCAL, str(tmp_path / "file"), b"data")
