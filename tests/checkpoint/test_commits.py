"""A follower sees every change of the commit log, though a file system's clock is coarse; a thread acts on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.checkpoint.conftest import Checkpoint
from tests.waiting import SECONDS, eventually
from wallaroo_spark.checkpoint import CheckpointFiles, CommitFollower, CommitThread, commits
from wallaroo_spark.sidecar.batch_log import COARSE_NS


class Clock:
    """A commit log that changed at ``at``, None where that cannot be seen; and the time it is, both in ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: int | None = 0
        self.now = 10 * COARSE_NS
        clock = SimpleNamespace(time_ns=lambda: self.now, monotonic=time.monotonic)
        monkeypatch.setattr("wallaroo_spark.checkpoint.commits.time", clock)

        self.planned = 0

    def stamp(self, log: str = "commits") -> int | None:
        return self.planned if log == "offsets" else self.at

    def next_commit(self) -> int | None:
        return None


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Any:
    return Clock(monkeypatch)


def test_a_change_is_seen_once_its_stamp_is_old(log: Any) -> None:
    follower = CommitFollower(log)
    assert not follower.changed()

    log.at = log.now - COARSE_NS
    assert [follower.changed() for _ in range(3)] == [True, False, False]


def test_a_young_stamp_is_looked_behind_again(log: Any) -> None:
    follower = CommitFollower(log)
    log.at = log.now

    assert [follower.changed() for _ in range(3)] == [True, True, True]
    log.now += COARSE_NS
    assert not follower.changed()


def test_where_looking_is_not_cheap_nothing_is_seen(log: Any) -> None:
    follower = CommitFollower(log)
    log.at = None

    assert not follower.changed()


def pauses(follower: CommitFollower) -> list[float]:
    """The first three pauses of a wait."""
    found: list[float] = []

    class Woken:
        def wait(self, pause: float) -> bool:
            found.append(pause)
            return len(found) == 3

    follower.wait(cast(Any, Woken()))
    return found


def test_a_commit_whose_file_spark_has_begun_is_looked_for_often(log: Any) -> None:
    log.now = log.at = 100 * 10**9
    log.planned = log.now - 10**8

    assert pauses(CommitFollower(log)) == [commits.LEAST_LOOK_SECONDS] * 3


def test_a_log_that_has_long_not_changed_is_looked_at_seldom(log: Any) -> None:
    log.now = 100 * 10**9
    log.at = log.planned = log.now - 10 * 10**9

    assert pauses(CommitFollower(log))[0] == commits.LOOK_SECONDS


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait ends because of a commit alone."""
    monkeypatch.setattr(commits, "COMMIT_SECONDS", 2 * SECONDS)


@pytest.mark.usefixtures("seldom")
def test_a_wait_that_sees_a_change_hides_it_from_nobody(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run(0)
    follower = CommitFollower(CheckpointFiles(str(tmp_path)))
    assert follower.newest() == 0

    checkpoint.run(1)
    long_ago = time.time() - 60
    os.utime(tmp_path / "commits", (long_ago, long_ago))
    follower.wait()

    assert follower.newest() == 1


@pytest.mark.usefixtures("seldom")
def test_the_commit_of_the_next_batch_ends_a_wait_before_its_folder_shows_a_change(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run(0)
    follower = CommitFollower(CheckpointFiles(str(tmp_path)))
    before = os.stat(tmp_path / "commits")
    assert follower.newest() == 0

    checkpoint.run(1)
    os.utime(tmp_path / "commits", ns=(before.st_atime_ns, before.st_mtime_ns))
    follower.wait()

    assert follower.newest() == 1


@pytest.mark.usefixtures("seldom")
async def test_a_commit_ends_a_wait_of_asyncio(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run(0)
    follower = CommitFollower(CheckpointFiles(str(tmp_path)))
    assert follower.newest() == 0

    waiting = asyncio.ensure_future(follower.wait_async())
    checkpoint.run(1)
    await asyncio.wait_for(waiting, SECONDS)

    assert follower.newest() == 1


@contextlib.contextmanager
def following(folder: Path, act: Callable[[int | None], None]) -> Iterator[CommitThread]:
    files = CheckpointFiles(str(folder))
    follower = CommitThread(files, lambda: act(files.committed()), "application shop")
    follower.start()
    try:
        yield follower
    finally:
        follower.stop()


def test_each_commit_is_acted_on_also_the_last_one_before_the_end(tmp_path: Path) -> None:
    checkpoint, seen = Checkpoint(tmp_path), list[int | None]()

    with following(tmp_path, seen.append):
        checkpoint.run(0)
        eventually(lambda: 0 in seen)
        checkpoint.run(1)
        checkpoint.run(2)

    assert seen[-1] == 2


def test_an_error_is_told_and_the_work_repeated(tmp_path: Path) -> None:
    Checkpoint(tmp_path).run(0)
    failing, done = [True], list[int | None]()

    def act(batch: int | None) -> None:
        if failing[0]:
            raise OSError("no room")
        done.append(batch)

    with following(tmp_path, act) as follower:
        eventually(lambda: follower.error == "no room")
        failing[0] = False
        eventually(lambda: done and not follower.error)

    assert done[0] == 0
