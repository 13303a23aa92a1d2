"""A folder that is looked at again and again: listed only when it may have changed, and each change is seen."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from wallaroo_spark.sidecar import batch_log
from wallaroo_spark.sidecar.batch_log import FolderListing
from wallaroo_spark.sidecar.folder import SidecarFolder


class Counted(SidecarFolder):
    """A folder that counts its listings."""

    listings = 0

    def names(self) -> list[str]:
        self.listings += 1
        return super().names()


@pytest.fixture
def folder(tmp_path: Path) -> Counted:
    return Counted(str(tmp_path), "inbox")


def aged(folder: SidecarFolder, seconds: float) -> None:
    """Set the folder's modification time."""
    then = time.time() - seconds
    os.utime(folder.path, (then, then))


def test_a_folder_that_did_not_change_is_not_listed_again(folder: Counted) -> None:
    folder.write("a", b"")
    aged(folder, 60)
    names = FolderListing(folder)

    assert [names.names() for _ in range(5)] == [["a"]] * 5
    assert folder.listings == 1


def test_each_change_is_seen_also_when_it_follows_at_once(folder: Counted) -> None:
    names = FolderListing(folder)
    assert names.names() == []

    for number in range(20):
        folder.write(f"{number:02}", b"")
        assert len(names.names()) == number + 1


def test_a_change_with_the_time_of_an_earlier_one_is_seen_after_a_while(
    folder: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a", b"")
    aged(folder, 60)
    names = FolderListing(folder)
    names.names()
    stamp = os.stat(folder.path).st_mtime_ns
    folder.write("b", b"")
    os.utime(folder.path, ns=(stamp, stamp))

    assert names.names() == ["a"]
    assert names.names(fresh=True) == ["a", "b"]
    folder.write("c", b"")
    os.utime(folder.path, ns=(stamp, stamp))
    monkeypatch.setattr(batch_log, "LIST_SECONDS", 0.0)
    assert names.names() == ["a", "b", "c"]


def test_an_object_store_is_listed_at_a_pace(folder: Counted) -> None:
    folder.local = False
    slow, quick = FolderListing(folder, pace=3600), FolderListing(folder, pace=0)
    assert slow.names() == quick.names() == []

    folder.write("a", b"")

    assert (slow.names(), quick.names(), slow.names(fresh=True)) == ([], ["a"], ["a"])
