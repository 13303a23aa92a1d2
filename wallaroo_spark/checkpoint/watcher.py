"""A thread that looks at a checkpoint and says when it has moved on.

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
from wallaroo_spark.errors import one_line
from wallaroo_spark.steps import Step, passed

_log = one_line(logging.getLogger(__name__))

POLL_SECONDS = 1.0
STOP_SECONDS = 5.0


class CheckpointWatcher:
    """Calls ``on_progress`` with each :class:`QueryProgress` whose committed or planned batch is newer than before.

    It looks when the commit log has changed, where that is cheap to see, when it is woken, which the owner can do on
    every progress report of the query, and every ``poll_seconds``, because both can be missed. What it reports never
    goes back, except when the checkpoint has been removed and made anew, or :meth:`start` is called again. Nothing that
    goes wrong ends it: errors are logged once per kind, kept in :attr:`error`, and the look is taken again. A call of
    ``on_progress`` that raises is repeated.
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
        self.last: QueryProgress | None = None
        """The last report; None before the first."""
        self.error: str | None = None
        """The error of the last look; None when it succeeded."""

    def start(self) -> None:
        """Begin to look, and to report from nothing. Does nothing while it runs."""
        if self._thread and self._thread.is_alive():
            return
        self.last, self.error, self._query_id = None, None, None
        self._logged.clear()
        self._stopping.clear()
        self._woken.set()
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-{self._receiver}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now. May be called from any thread, at any rate; it returns at once."""
        self._woken.set()

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Take a last look, so that everything committed by now is reported, and end; waits up to ``wait_seconds``."""
        self._stopping.set()
        self._woken.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            self._wait()
            self._woken.clear()
            # Read before the look: a stop that arrives during it still gets one of its own.
            stopping = self._stopping.is_set()
            try:
                self._look()
            except Exception as error:
                self._note(error)
            else:
                self.error = None
                self._logged.clear()

    def _wait(self) -> None:
        """Until there may be something to see."""
        until = time.monotonic() + self._poll_seconds
        while (left := until - time.monotonic()) > 0:
            pause = min(GLANCE_SECONDS, left) if self._glance.cheap() else left
            if self._woken.wait(pause) or self._glance.changed():
                return

    def _look(self) -> None:
        progress = self._files.progress(self._receiver)
        if _newest(progress) < _newest(self.last) or _committed(progress) < _committed(self.last):
            # A listing may be stale; another query's id is proof that the checkpoint was made anew.
            if self._files.query_id() == self._query_id:
                return
            _log.warning("%s was made anew; its progress is followed from the start", self._files)
            self.last = self._query_id = None
        if _newest(progress) > _newest(self.last) or _committed(progress) > _committed(self.last):
            if _committed(progress) > _committed(self.last):
                passed(Step.COMMITS_WRITTEN)
            self._query_id = self._query_id or self._files.query_id()
            self._on_progress(progress)
            self.last = progress

    def _note(self, error: Exception) -> None:
        self.error = str(error) or type(error).__name__
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.warning("watching %s failed, and is tried again: %s", self._files, self.error, exc_info=error)


def _committed(progress: QueryProgress | None) -> int:
    return progress.committed.batch if progress and progress.committed else -1


def _newest(progress: QueryProgress | None) -> int:
    return max(_committed(progress), progress.planned.batch if progress and progress.planned else -1)
