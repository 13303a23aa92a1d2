"""The lock of an application's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.engine.application.folder_lock import FolderLock
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.storage import locations

PROGRAM = """
import sys
import threading
from wallaroo_spark.engine.application.folder_lock import FolderLock
lock = FolderLock(sys.argv[1])
lock.take("another/7/program")
print("taken", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_another_process_is_refused_until_that_process_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    lock = FolderLock(str(tmp_path))
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(ConfigurationError, match=r"another driver \(another/7/program\) runs the application in"):
            lock.take("this")
    finally:
        other.kill()
        other.communicate(timeout=SECONDS)

    lock.take("this")
    assert (tmp_path / "_wallaroo" / "driver.lock").read_text(encoding="utf-8") == "this"
    lock.release()
    FolderLock(str(tmp_path)).take("later")


def marking(folder: Path, seconds: float = 0.3) -> FolderLock:
    """A lock as on a file system of other machines."""
    lock = FolderLock(str(folder), seconds=seconds)
    lock._folder.local = False
    return lock


def test_elsewhere_a_driver_that_renews_its_mark_excludes_others_until_it_ends(tmp_path: Path) -> None:
    running, other = marking(tmp_path), marking(tmp_path, seconds=SECONDS)
    running.take("the running driver")
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.01):
            running.renew()

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(ConfigurationError, match=r"another driver \(the running driver\) runs the application"):
            other.take("another")
    finally:
        ended.set()
        renewing.join(SECONDS)

    running.release()
    other.take("another")


def test_elsewhere_the_mark_of_a_killed_driver_is_taken_after_a_while_and_that_driver_ends_if_it_lives(
    tmp_path: Path,
) -> None:
    stopped, following = marking(tmp_path), marking(tmp_path)
    stopped.take("a driver that does nothing for a while")
    following.take("the following driver")

    with pytest.raises(ConfigurationError, match="the following driver") as refused:
        eventually(stopped.renew)
    assert refused.value.code == "application-in-use"
    stopped.release()
    assert (tmp_path / "_wallaroo" / "driver.json").exists()
    following.release()
    assert not (tmp_path / "_wallaroo" / "driver.json").exists()


def test_a_mount_without_locks_has_a_mark_and_names_no_other_driver_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    running = FolderLock(str(tmp_path), seconds=0.0)
    running.take("the running driver")
    assert (tmp_path / "_wallaroo" / "driver.json").exists()

    other = FolderLock(str(tmp_path), seconds=0.3)
    other.take("a driver that starts when the mark has stayed the same")
    with pytest.raises(ConfigurationError, match="a driver that starts when the mark has stayed the same"):
        running.renew()


def test_the_mark_of_a_driver_that_is_known_to_be_gone_is_not_watched(tmp_path: Path) -> None:
    marking(tmp_path).take("the killed driver")
    asked: list[str] = []

    def gone(owner: str) -> bool:
        asked.append(owner)
        return len(asked) > 1

    other = FolderLock(str(tmp_path), seconds=3600.0, wait=lambda seconds: False, gone=gone)
    other._folder.local = False
    other.take("another")
    assert asked == ["the killed driver"] * 2


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "gone"])
def test_a_driver_whose_folder_was_moved_and_restored_ends(tmp_path: Path, restored: bool) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    living = FolderLock(str(folder))
    living.take("the living driver")
    living.renew()
    folder.rename(tmp_path / "away")
    if restored:
        shutil.copytree(tmp_path / "away", folder)
        FolderLock(str(folder)).take("a driver of the restored folder")

    with pytest.raises(ConfigurationError, match="was moved, deleted or restored") as caught:
        living.renew()
    assert caught.value.code == "folder-replaced"
    living.release()
    living.require()


def test_a_mount_that_grants_a_lock_to_each_machine_has_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 0:59 / {tmp_path} rw,relatime shared:1 - fuse.s3fs s3fs rw,user_id=0\n")
    monkeypatch.setattr(locations, "TABLE", str(table))
    lock = FolderLock(str(tmp_path / "shop"), seconds=0.0)
    lock.take("this")

    assert (tmp_path / "shop" / "_wallaroo" / "driver.json").exists()
    assert not (tmp_path / "shop" / "_wallaroo" / "driver.lock").exists()


def test_a_symbolic_link_to_a_folder_has_the_lock_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shop")
    lock = FolderLock(str(tmp_path / "shop"))
    lock.take("this")

    with pytest.raises(ConfigurationError, match=r"another driver \(this\)"):
        FolderLock(str(tmp_path / "link")).take("by the link")


@pytest.mark.parametrize(
    ("options", "problem"), [("ro", "Read-only file system"), ("full", "No space left")], ids=["read-only", "full"]
)
def test_a_folder_that_cannot_be_written_is_an_error_with_the_way_out(
    tmp_path: Path, options: str, problem: str
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems: run the test as root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        (tmp_path / "_wallaroo").mkdir()
        if options == "ro":
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        else:
            with pytest.raises(OSError, match="No space"):
                (tmp_path / "large").write_bytes(bytes(100_000))
        with pytest.raises(CheckpointError, match=f"cannot be written: {problem}.*check that") as caught:
            FolderLock(str(tmp_path)).take("this")
        assert caught.value.code == "checkpoint-unwritable"
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
