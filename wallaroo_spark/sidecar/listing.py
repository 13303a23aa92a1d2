"""The names in a folder beside a checkpoint, for a process that looks again and again."""

from __future__ import annotations

import math
import os
import time

from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import is_mounted

PACE_SECONDS = 0.25
"""Shortest time between two listings where a look is not cheap. A choice: an object store takes money and some 30 ms
for each, and messages wait for at most this time."""
LIST_SECONDS = 5.0
"""Longest time between two listings. A choice: the clock of a network file system may be another one than this
machine's, and then a change may have the same modification time as the one before it."""
COARSE_NS = 50_000_000
"""The age from which the modification time of a folder is trusted.

File systems take the time from a coarse clock (the kernel's tick, 1 to 10 ms), so two changes may have the same time.
The age is five of the longest ticks.
"""


class FolderListing:
    """The names in ``folder``, listed again only when they may have changed. Not for several threads at once.

    On a local disk a look costs one ``stat`` of the folder. On other file systems, mounted object stores among them,
    two listings are at least ``pace`` seconds apart.
    """

    def __init__(self, folder: SidecarFolder, pace: float = PACE_SECONDS) -> None:
        self._folder, self._pace = folder, pace
        self._stamped = folder.local and not is_mounted(folder.path)
        self._names: list[str] = []
        self._stamp: int | None = None
        self._listed_at = -math.inf

    def names(self, *, fresh: bool = False) -> list[str]:
        """Return the names, sorted; empty when the folder does not exist. ``fresh`` lists in any case.

        Raises :class:`wallaroo_spark.errors.CheckpointError` when the folder cannot be listed.
        """
        age = time.monotonic() - self._listed_at
        if self._stamped:
            self._list_if_changed(fresh or age >= LIST_SECONDS)
        elif fresh or age >= self._pace:
            self._list()
        return self._names

    def _list_if_changed(self, fresh: bool) -> None:
        # The time of the change is read before the names: a change in between is seen by the next look.
        try:
            stamp: int | None = os.stat(self._folder.path).st_mtime_ns
        except OSError:
            stamp = None
        if fresh or stamp is None or stamp != self._stamp:
            self._list()
            settled = stamp is not None and time.time_ns() - stamp >= COARSE_NS
            self._stamp = stamp if settled else None

    def _list(self) -> None:
        self._names, self._listed_at = self._folder.names(), time.monotonic()
