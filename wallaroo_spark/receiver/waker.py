"""Wakes a checkpoint watcher when Spark reports progress, for file systems on which watching the files is expensive."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from wallaroo_spark.checkpoint import CheckpointWatcher


class Waker(StreamingQueryListener):
    """Wakes the watcher at each progress report, which Spark sends after it has written ``commits/N``.

    Source: ``docs/decisions/acks-from-the-commit-log.md``.
    """

    def __init__(self, watcher: CheckpointWatcher) -> None:
        self._watcher = watcher

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: no batch is committed yet."""

    def onQueryProgress(self, event: Any) -> None:
        """Wake the watcher: a batch has been committed."""
        self._watcher.wake()

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: an idle query commits no batch."""

    def onQueryTerminated(self, event: Any) -> None:
        """Wake the watcher: the last batch may have been committed after the last report."""
        self._watcher.wake()
