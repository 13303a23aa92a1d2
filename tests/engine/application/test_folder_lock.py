"""The lock of an application's folder."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.engine.application.folder_lock import FolderLock
from wallaroo_spark.errors import ConfigurationError

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
