"""The watcher's thread, on real files."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import SECONDS
from wallaroo_spark.checkpoint import CheckpointFiles, CheckpointWatcher, QueryProgress, commits

from .conftest import Checkpoint

NEVER = 3600.0


class Heard:
    """The reports of a watcher; a test can wait for them."""

    def __init__(self) -> None:
        self.reports: queue.Queue[QueryProgress] = queue.Queue()
        self.failures: list[Exception] = []

    def __call__(self, progress: QueryProgress) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.reports.put(progress)

    def next(self) -> tuple[int | None, int | None]:
        """Batches of the next report: committed and planned."""
        progress = self.reports.get(timeout=SECONDS)
        return (
            progress.committed.batch if progress.committed else None,
            progress.planned.batch if progress.planned else None,
        )

    def settled(self) -> tuple[int | None, int | None]:
        """The next report whose batches are all committed: a look may come between a plan and its commit."""
        while (found := self.next())[1] is not None:
            pass
        return found


class Files(CheckpointFiles):
    """Says when a look is over, and fails when it is told to."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.looks: queue.Queue[None] = queue.Queue()
        self.failures: list[Exception] = []

    def progress(self, receiver: str) -> QueryProgress:
        try:
            if self.failures:
                raise self.failures.pop(0)
            return super().progress(receiver)
        finally:
            self.looks.put(None)

    def wait_for_look(self) -> None:
        self.looks.get(timeout=SECONDS)


Watch = Callable[..., CheckpointWatcher]


@pytest.fixture
def files(checkpoint: Checkpoint) -> Files:
    return Files(str(checkpoint.folder))


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watch(files: Files, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    made: list[CheckpointWatcher] = []

    def start(seconds: float = NEVER) -> CheckpointWatcher:
        monkeypatch.setattr(commits, "COMMIT_SECONDS", seconds)
        watcher = CheckpointWatcher(files, "orders", heard)
        made.append(watcher)
        watcher.start()
        return watcher

    yield start
    for watcher in made:
        watcher.stop()


def look(watcher: CheckpointWatcher, files: Files) -> None:
    """Have the watcher look once more, from start to end.

    Of the looks that are waited for, the first may have begun before this call and the last may not be over; the one
    in between is whole.
    """
    for _ in range(3):
        while not files.looks.empty():
            files.looks.get_nowait()
        watcher.wake()
        files.wait_for_look()


def test_the_committed_batch_is_reported_at_the_start(checkpoint: Checkpoint, watch: Watch, heard: Heard) -> None:
    checkpoint.run(0)
    checkpoint.plan(1)
    watch()
    assert heard.next() == (0, 1)


def test_a_woken_watcher_reports_plans_and_commits(checkpoint: Checkpoint, watch: Watch, heard: Heard) -> None:
    watcher = watch()
    checkpoint.plan(0)
    watcher.wake()
    assert heard.next() == (None, 0)
    checkpoint.commit(0)
    watcher.wake()
    assert heard.settled() == (0, None)


def test_a_change_of_the_commit_log_is_seen_without_being_woken(
    checkpoint: Checkpoint, watch: Watch, heard: Heard
) -> None:
    checkpoint.run(0)
    watch(seconds=NEVER)
    assert heard.settled() == (0, None)
    for batch in range(1, 4):
        checkpoint.run(batch)
        assert heard.next() == (batch, None)


def test_a_watcher_that_nobody_wakes_looks_by_itself(checkpoint: Checkpoint, watch: Watch, heard: Heard) -> None:
    watch(seconds=0.01)
    checkpoint.run(0)
    while (report := heard.next()) != (0, None):
        assert report == (None, 0)
    checkpoint.run(1)
    while (report := heard.next()) != (1, None):
        assert report == (0, 1)


def test_a_reported_batch_is_not_reported_again(
    checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files
) -> None:
    checkpoint.run(0)
    watcher = watch()
    assert heard.settled() == (0, None)
    for _ in range(3):
        look(watcher, files)
    assert heard.reports.empty()
    assert watcher.last
    assert watcher.last.committed
    assert watcher.last.committed.references == {"shop-1": {"7": 100}}


def test_progress_never_goes_back_while_the_query_is_the_same(
    checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files
) -> None:
    checkpoint.run(0)
    checkpoint.run(1)
    watcher = watch()
    assert heard.settled() == (1, None)
    checkpoint.remove("commits/1")
    look(watcher, files)
    assert heard.reports.empty()
    checkpoint.commit(1)
    checkpoint.run(2)
    watcher.wake()
    assert heard.settled() == (2, None)


def test_a_checkpoint_made_again_is_followed_from_its_start(
    checkpoint: Checkpoint, watch: Watch, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(3):
        checkpoint.run(batch)
    watcher = watch()
    assert heard.settled() == (2, None)
    shutil.rmtree(checkpoint.folder)
    Checkpoint(checkpoint.folder, "query-2").run(0)
    watcher.wake()
    assert heard.settled() == (0, None)
    assert "created anew" in caplog.text


def test_an_emptied_checkpoint_is_forgotten_and_said_so_once(
    checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.run(5)
    watcher = watch()
    assert heard.settled() == (5, None)
    shutil.rmtree(checkpoint.folder)
    look(watcher, files)
    look(watcher, files)
    assert watcher.last is None
    assert caplog.text.count("created anew") == 1
    Checkpoint(checkpoint.folder, "query-2").run(0)
    watcher.wake()
    assert heard.settled() == (0, None)


def test_a_failing_look_is_logged_once_kept_as_error_and_taken_again(
    checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.run(0)
    files.failures = [OSError("the disk is away"), OSError("the disk is still away"), ValueError()]
    watcher = watch()
    files.wait_for_look()
    look(watcher, files)
    watcher.wake()
    assert heard.settled() == (0, None)
    look(watcher, files)
    assert watcher.error == ""
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "the disk is away" in caplog.text
    assert "still away" not in caplog.text


def test_an_error_is_kept_for_the_status_until_a_look_succeeds(
    checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files
) -> None:
    watcher = watch()
    (checkpoint.folder / "offsets/0").write_text("v9\n{}\n-")
    look(watcher, files)
    assert watcher.error
    assert "v9" in watcher.error
    checkpoint.run(0)
    watcher.wake()
    assert heard.settled() == (0, None)
    look(watcher, files)
    assert watcher.error == ""


def test_a_report_that_fails_is_made_again(checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files) -> None:
    checkpoint.run(0)
    heard.failures = [RuntimeError("the worker is away")]
    watcher = watch()
    files.wait_for_look()
    watcher.wake()
    assert heard.settled() == (0, None)


def test_stopping_takes_a_last_look(checkpoint: Checkpoint, watch: Watch, heard: Heard, files: Files) -> None:
    watcher = watch()
    files.wait_for_look()
    checkpoint.run(0)
    watcher.stop()
    assert heard.settled() == (0, None)
    checkpoint.run(1)
    watcher.wake()
    watcher.stop()
    assert heard.reports.empty()


def test_a_stopped_watcher_can_be_started_again_and_reports_from_nothing(
    checkpoint: Checkpoint, watch: Watch, heard: Heard
) -> None:
    checkpoint.run(0)
    watcher = watch()
    assert heard.settled() == (0, None)
    watcher.stop()
    watcher.start()
    watcher.start()
    assert heard.settled() == (0, None)
    watcher.stop()
    assert heard.reports.empty()


def test_a_watcher_may_be_stopped_from_its_own_report(
    checkpoint: Checkpoint, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "COMMIT_SECONDS", NEVER)
    stopped = threading.Event()

    def stop(progress: QueryProgress) -> None:
        watcher.stop()
        stopped.set()

    watcher = CheckpointWatcher(files, "orders", stop)
    checkpoint.run(0)
    watcher.start()
    assert stopped.wait(SECONDS)
    watcher.stop()
    assert watcher.last


def test_stopping_before_a_start_does_nothing(files: Files, heard: Heard) -> None:
    watcher = CheckpointWatcher(files, "orders", heard)
    watcher.stop()
    assert watcher.last is None
