"""Follows the commits of a query: when a batch may have been committed, and a thread that acts on it.

Nothing else looks whether ``commits/`` of a checkpoint has changed.
Source: ``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator

from wallaroo_spark.checkpoint.files import CheckpointFiles
from wallaroo_spark.checkpoint.model import QueryProgress
from wallaroo_spark.errors import CheckpointError, WallarooError, one_line
from wallaroo_spark.sidecar.batch_log import COARSE_NS
from wallaroo_spark.steps import Step, passed

_log = one_line(logging.getLogger(__name__))

LOOK_SECONDS = 0.02
"""The longest pause between two looks at a local checkpoint, while nothing changes or a batch takes long."""
LEAST_LOOK_SECONDS = 0.002
"""The shortest pause."""
LOOKS_A_BATCH = 50
"""A pause is this part of the time since the last change of the offset log or of the commit log, within the two limits.

So a pause delays an ACK by a fiftieth of its batch. A batch of 100 ms has 50 looks, one of half a second 110. The
commit log changes some milliseconds before a commit is there, when Spark begins to write its file.
"""
COMMIT_SECONDS = 0.5
"""The longest pause between two reads of the commit log, also where its changes cannot be seen cheaply.

A choice: on such a file system it adds half of itself to a batch's delay, and each read lists one folder.
"""
STOP_SECONDS = 5.0
"""How long :meth:`CommitThread.stop` waits for the last work. A choice, for slow file systems."""
PURGE_BATCHES = 10
"""Batches between two purges of plans beside the checkpoint; Spark keeps 100 batches unless told otherwise."""


class CommitFollower:
    """The newest committed batch of a checkpoint, and a wait for the next one. Not for several threads at once.

    On this machine's own file system a wait looks at the modification time of the commit log. Elsewhere a look is not
    cheap or not reliable, so a wait takes :data:`COMMIT_SECONDS`.
    """

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._stamp = 0
        self._newest: int | None = None
        self._unread = True
        self._following: int | None = None
        self._again_at = 0.0

    def newest(self, *, fresh: bool = False) -> int | None:
        """The newest committed batch; None before the first. Cheap to call again.

        Where a look is not cheap the answer is up to COMMIT_SECONDS old, unless it has to be ``fresh``. Raises
        :class:`CheckpointError`.
        """
        if self._files.stamp() is not None:
            # After an error, or a wait that has seen the change, the log is read also when it has not changed since.
            if self.changed() or self._unread:
                self._newest = self._files.committed()
                self._unread = False
        elif fresh or time.monotonic() >= self._again_at:
            self._newest = self._files.committed()
            self._again_at = time.monotonic() + COMMIT_SECONDS
        return self._newest

    def changed(self) -> bool:
        """Whether the commit log may have changed since the last call; False where a look is not cheap."""
        stamp = self._files.stamp()
        if stamp is None or (stamp == self._stamp and time.time_ns() - stamp >= COARSE_NS):
            return False
        self._stamp, self._unread = stamp, True
        return True

    def wait(self, woken: threading.Event | None = None) -> None:
        """Return when the commit log may have changed, ``woken`` is set, or COMMIT_SECONDS have passed."""
        woken = woken or threading.Event()
        for pause in self._pauses():
            if woken.wait(pause):
                return

    async def wait_async(self) -> None:
        """The same as :meth:`wait`, for asyncio."""
        for pause in self._pauses():
            await asyncio.sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """The pauses of one wait."""
        now = time.monotonic()
        until, look_at = now + COMMIT_SECONDS, now + LOOK_SECONDS
        while (left := until - now) > 0:
            yield min(self._pause(), left)
            now = time.monotonic()
            following = self._files.next_commit()
            if following is not None and following != self._following:
                # Once: what cannot be read, or acted on, is repeated after COMMIT_SECONDS.
                self._following, self._unread = following, True
                return
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                if self.changed():
                    return

    def _pause(self) -> float:
        """Seconds until the next look."""
        planned, committed = self._files.stamp("offsets"), self._files.stamp()
        if planned is None or committed is None:
            return COMMIT_SECONDS
        # A clock that was set back makes looks frequent, for as long as one batch.
        unchanged = (time.time_ns() - max(planned, committed)) / 1e9
        return min(max(unchanged / LOOKS_A_BATCH, LEAST_LOOK_SECONDS), LOOK_SECONDS)


class CommitThread:
    """A thread that calls ``work`` at its start, when the commit log may have changed, and every COMMIT_SECONDS.

    ``name`` names the thread in the log. An error of ``work`` does not end the thread: each kind is logged once, the
    last one is kept in :attr:`error`, and the call is repeated.
    """

    def __init__(self, files: CheckpointFiles, work: Callable[[], None], name: str) -> None:
        self.error = ""
        """The error of the last call; empty when it succeeded."""
        self._work, self._name = work, name
        self._follower = CommitFollower(files)
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._logged: set[type[Exception]] = set()

    def start(self) -> None:
        """Start the thread. Does nothing while it runs."""
        if self._thread and self._thread.is_alive():
            return
        self.error = ""
        self._logged.clear()
        self._stopping.clear()
        self._woken.set()
        self._thread = threading.Thread(target=self._run, name=f"{self._name}-commits", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread work now; returns at once. May be called from any thread, as often as wanted."""
        self._woken.set()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Work once more, so that every commit until now is acted on, and end; wait for at most ``wait_seconds``."""
        self._stopping.set()
        self._woken.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._follower.wait(self._woken)
            self._woken.clear()
            # Before the work, because a stop that arrives during it needs one more call.
            stopping = self._stopping.is_set()
            try:
                self._work()
            except Exception as error:
                self._note(error)
            else:
                self.error = ""
                self._logged.clear()

    def _note(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__
        if type(error) not in self._logged:
            self._logged.add(type(error))
            ours = None if isinstance(error, WallarooError) else error
            _log.warning(
                "%s: the work after a commit failed and is repeated: %s", self._name, self.error, exc_info=ours
            )


class CheckpointWatcher(CommitThread):
    """Calls ``on_progress`` with each :class:`QueryProgress` whose committed or planned batch is newer than the last.

    The owner may call :meth:`wake` at every progress report of the query. The batches in the reports never decrease,
    except when the checkpoint was deleted and created anew, or after another :meth:`start`. A call of ``on_progress``
    that raises is repeated.
    """

    def __init__(self, files: CheckpointFiles, receiver: str, on_progress: Callable[[QueryProgress], None]) -> None:
        super().__init__(files, self._look, f"receiver {receiver}")
        self._files = files
        self._receiver = receiver
        self._on_progress = on_progress
        self._query_id: str | None = None
        self._purged = -PURGE_BATCHES
        self.last: QueryProgress | None = None
        """The last report; None before the first."""

    def start(self) -> None:
        """Start the thread; the first report is the checkpoint's present state. Does nothing while the thread runs."""
        if not (self._thread and self._thread.is_alive()):
            self.last = self._query_id = None
        super().start()

    def _look(self) -> None:
        progress = self._files.progress(self._receiver)
        if _newest(progress) < _newest(self.last) or _committed(progress) < _committed(self.last):
            # A listing may be stale. Only another query id proves that the checkpoint was created anew.
            if self._files.query_id() == self._query_id:
                return
            _log.warning("%s was created anew; its progress is followed from the start", self._files)
            self.last = self._query_id = None
        if _newest(progress) > _newest(self.last) or _committed(progress) > _committed(self.last):
            if _committed(progress) > _committed(self.last):
                passed(Step.COMMITS_WRITTEN)
            self._query_id = self._query_id or self._files.query_id()
            self._on_progress(progress)
            self.last = progress
            self._purge(_committed(progress))

    def _purge(self, batch: int) -> None:
        """Delete plans to which no offset leads. An error here is only logged, because ACKs must not depend on it."""
        if 0 <= batch - self._purged < PURGE_BATCHES:
            return
        self._purged = batch
        try:
            self._files.purge_plans(self._receiver)
        except CheckpointError as error:
            _log.warning("%s: old plans stay until the next purge: %s", self._files, error)


def _committed(progress: QueryProgress | None) -> int:
    return progress.committed.batch if progress and progress.committed else -1


def _newest(progress: QueryProgress | None) -> int:
    return max(_committed(progress), progress.planned.batch if progress and progress.planned else -1)
