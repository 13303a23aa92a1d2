"""Has a watcher look when Spark reports progress, for checkpoints where nothing else tells of it."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from wallaroo_spark.checkpoint import CheckpointWatcher


class Waker(StreamingQueryListener):
    """Has the watcher look when Spark reports progress, which it does after it has written ``commits/N``."""

    def __init__(self, watcher: CheckpointWatcher) -> None:
        self._watcher = watcher

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to see yet."""

    def onQueryProgress(self, event: Any) -> None:
        """A batch has been committed."""
        self._watcher.wake()

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: Any) -> None:
        """The last batch may have been committed since."""
        self._watcher.wake()
