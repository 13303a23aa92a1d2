"""The lock of an application's folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.engine.application.folder_lock import FolderLock
from wallaroo_spark.errors import ConfigurationError

PROGRAM = """
import sys
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
