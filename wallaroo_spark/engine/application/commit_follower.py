"""A thread that calls a function with the newest committed batch, after each commit.

Source: ``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.checkpoint.glance import GLANCE_SECONDS, Glance
from wallaroo_spark.errors import one_line

log = one_line(logging.getLogger("wallaroo_spark.engine"))

POLL_SECONDS = 1.0
"""The longest pause between two calls. A choice: it bounds the delay where changes of a folder cannot be seen."""
STOP_SECONDS = 30.0
"""How long :meth:`CommitFollower.stop` waits for the last call. A choice: the files of a batch may have to be moved."""


class CommitFollower:
    """Calls ``act`` with the newest committed batch: after each commit, and every second without one.

    ``act`` gets None before the first commit. An error of ``act`` or of the checkpoint does not end the thread: it is
    logged once, kept in :attr:`error`, and the call is repeated.
    """

    def __init__(self, files: CheckpointFiles, act: Callable[[int | None], None], name: str) -> None:
        self.error = ""
        """The error of the last call; empty when it succeeded."""
        self._files = files
        self._act = act
        self._name = name
        self._glance = Glance(files)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=f"{self._name}-commits", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make one more call, so that every commit until now is acted on, and end the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._wait()
            try:
                self._act(self._files.committed())
                self.error = ""
            except Exception as error:
                text = str(error) or type(error).__name__
                if text != self.error:
                    log.warning("%s: the work after a commit failed and is repeated: %s", self._name, text)
                self.error = text

    def _wait(self) -> bool:
        """Wait for a change of the commit log, or a second; return whether the thread is to end."""
        until = time.monotonic() + POLL_SECONDS
        while time.monotonic() < until:
            if self._stopping.wait(GLANCE_SECONDS if self._glance.cheap() else POLL_SECONDS):
                return True
            if self._glance.changed():
                break
        return self._stopping.is_set()
