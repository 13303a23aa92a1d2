"""A thread that watches a checkpoint and reports each new plan and commit.

Source: ``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from wallaroo_spark.checkpoint.files import CheckpointFiles
from wallaroo_spark.checkpoint.glance import GLANCE_SECONDS, Glance
from wallaroo_spark.checkpoint.model import QueryProgress
from wallaroo_spark.errors import CheckpointError, one_line
from wallaroo_spark.steps import Step, passed

_log = one_line(logging.getLogger(__name__))

POLL_SECONDS = 1.0
"""The longest pause between two reads. A choice: it bounds the delay of an ACK when every other signal is missed."""
STOP_SECONDS = 5.0
"""How long :meth:`CheckpointWatcher.stop` waits for the last read. A choice, for slow file systems."""
PURGE_BATCHES = 10
"""Batches between two purges of plans beside the checkpoint; Spark keeps 100 batches unless told otherwise."""


class CheckpointWatcher:
    """Calls ``on_progress`` with each :class:`QueryProgress` whose committed or planned batch is newer than the last.

    It reads the checkpoint when the commit log has changed (where that can be checked cheaply), when :meth:`wake` is
    called (the owner may do that at every progress report of the query), and every ``poll_seconds``, because both
    signals can be missed. The batches in its reports never decrease, except when the checkpoint was deleted and created
    anew, or after another :meth:`start`. Errors do not end the watcher: each kind is logged once, the last one is kept
    in :attr:`error`, and the read is repeated. A call of ``on_progress`` that raises is repeated, too.
    """

    def __init__(
        self,
        files: CheckpointFiles,
        receiver: str,
        on_progress: Callable[[QueryProgress], None],
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._files = files
        self._receiver = receiver
        self._on_progress = on_progress
        self._poll_seconds = poll_seconds
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._logged: set[type[Exception]] = set()
        self._query_id: str | None = None
        self._glance = Glance(files)
        self._purged = -PURGE_BATCHES
        self.last: QueryProgress | None = None
        """The last report; None before the first."""
        self.error: str | None = None
        """The error of the last read or report; None when both succeeded."""

    def start(self) -> None:
        """Start the thread; the first report is the checkpoint's present state. Does nothing while the thread runs."""
        if self._thread and self._thread.is_alive():
            return
        self.last, self.error, self._query_id = None, None, None
        self._logged.clear()
        self._stopping.clear()
        self._woken.set()
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-{self._receiver}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Make the thread read now; returns at once. May be called from any thread, as often as wanted."""
        self._woken.set()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Read once more, so that every commit until now is reported, and end; wait for at most ``wait_seconds``."""
        self._stopping.set()
        self._woken.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._wait()
            self._woken.clear()
            # Before the read, because a stop that arrives during a read needs one more read.
            stopping = self._stopping.is_set()
            try:
                self._look()
            except Exception as error:
                self._note(error)
            else:
                self.error = None
                self._logged.clear()

    def _wait(self) -> None:
        """Wait until the checkpoint may have changed."""
        until = time.monotonic() + self._poll_seconds
        while (left := until - time.monotonic()) > 0:
            pause = min(GLANCE_SECONDS, left) if self._glance.cheap() else left
            if self._woken.wait(pause) or self._glance.changed():
                return

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

    def _note(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.warning("reading %s failed, and is tried again: %s", self._files, self.error, exc_info=error)


def _committed(progress: QueryProgress | None) -> int:
    return progress.committed.batch if progress and progress.committed else -1


def _newest(progress: QueryProgress | None) -> int:
    return max(_committed(progress), progress.planned.batch if progress and progress.planned else -1)
