"""Files of our own beside a checkpoint: whole or not there, and one alone where several would create it."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import fs

from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.sidecar.folder import SidecarFolder


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> SidecarFolder:
    """A folder on the local file system, and on one that is not known to be local."""
    made = SidecarFolder(str(tmp_path / "checkpoint"), "sinks", "orders")
    if request.param == "remote":
        made.filesystem, made.path = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "checkpoint/_wallaroo/s"
        made.local = False
    return made


def test_a_written_file_is_read_back_and_replaced(folder: SidecarFolder) -> None:
    assert folder.names() == []
    assert folder.read("7.json") is None

    folder.write("7.json", b"one")
    folder.write("7.json", b"two")

    assert folder.read("7.json") == b"two"
    assert folder.names() == ["7.json"]


def test_a_created_file_is_never_replaced(folder: SidecarFolder) -> None:
    assert folder.create("7.json", b"one")
    assert not folder.create("7.json", b"two")

    assert folder.read("7.json") == b"one"
    assert folder.names() == ["7.json"]
    assert not [name for name in folder.filesystem.get_file_info(fs.FileSelector(folder.path)) if ".tmp" in name.path]


def test_deleting_a_missing_file_does_nothing(folder: SidecarFolder) -> None:
    folder.write("a", b"")
    for _ in range(2):
        folder.delete("a")
        folder.delete_folder("b")

    assert folder.names() == []


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    SidecarFolder(str(tmp_path), "topics", "orders").write("x", b"1")

    topics = SidecarFolder(str(tmp_path), "topics")
    assert topics.names() == ["orders"]
    topics.delete_folder("orders")

    assert topics.names() == []


def test_one_of_many_that_create_a_file_at_once_succeeds(tmp_path: Path) -> None:
    folder = SidecarFolder(str(tmp_path), "x")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: (folder.create("slot", b"%d" % number), number), range(32)))

    winners = [number for created, number in won if created]
    assert len(winners) == 1
    assert folder.read("slot") == b"%d" % winners[0]


def test_it_is_where_spark_does_not_look(tmp_path: Path) -> None:
    folder = SidecarFolder(f"file://{tmp_path}/checkpoint", "sinks", "orders")

    assert folder.path == f"{tmp_path.resolve()}/checkpoint/_wallaroo/sinks/orders"
    assert os.path.isdir(folder.folder())
    assert repr(folder) == f"SidecarFolder('file://{tmp_path.resolve()}/checkpoint/_wallaroo/sinks/orders')"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a\0"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a single part of a path"):
        SidecarFolder(str(tmp_path), name)
    with pytest.raises(ConfigurationError, match="a single part of a path"):
        SidecarFolder(str(tmp_path)).write(name, b"")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "_wallaroo").write_text("in the way")

    with pytest.raises(CheckpointError, match=r"_wallaroo/x/7 cannot be written: .*check that this process"):
        SidecarFolder(str(tmp_path), "x").write("7", b"")


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SidecarFolder(str(tmp_path), "x")
    folder.write("7", b"one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for act in (folder.write, folder.create):
        with pytest.raises(CheckpointError, match="No space left on device; check"):
            act("8", b"two")

    assert (folder.names(), os.listdir(folder.path)) == (["7"], ["7"])


def test_a_mounted_object_store_has_neither_links_nor_folders_to_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def invalid(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "fsync", invalid)
    folder = SidecarFolder(str(tmp_path), "x")

    assert folder.create("7", b"one")
    assert not folder.create("7", b"two")
    assert folder.read("7") == b"one"
    assert os.listdir(folder.path) == ["7"]


def test_drafts_of_writers_that_have_died_are_deleted_and_nothing_else(folder: SidecarFolder) -> None:
    folder.write("a", b"1")
    with folder.filesystem.open_output_stream(f"{folder.path}/.b.1234.tmp") as draft:
        draft.write(b"half")

    folder.delete_drafts()

    assert folder.names() == ["a"]
    assert len(folder.filesystem.get_file_info(fs.FileSelector(folder.path))) == 1


def test_the_mark_of_a_folder_stays_and_a_folder_in_it_is_deleted_with_its_content(folder: SidecarFolder) -> None:
    assert folder.mark() == folder.mark()
    folder.filesystem.create_dir(f"{folder.path}/inner")
    with folder.filesystem.open_output_stream(f"{folder.path}/inner/file") as file:
        file.write(b"1")

    for _ in range(2):
        folder.delete_folder("inner")

    assert folder.names() == ["identity"]
    assert repr(folder).startswith("SidecarFolder(")
