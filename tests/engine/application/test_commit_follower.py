"""The thread that acts on commits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.checkpoint.conftest import Checkpoint
from tests.waiting import eventually
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.application.commit_follower import CommitFollower


@contextlib.contextmanager
def following(folder: Path, act: Callable[[int | None], None]) -> Iterator[CommitFollower]:
    follower = CommitFollower(CheckpointFiles(str(folder)), act, "application shop")
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
