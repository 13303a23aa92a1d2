"""A cheap look at the commit log: whether it may have changed since the last one."""

from __future__ import annotations

import time
from typing import Protocol

GLANCE_SECONDS = 0.02
"""Pause between two glances. A glance costs a ``stat``; the pause is the most that it adds to the time to an ACK."""
COARSE_NS = 50_000_000
"""File systems stamp changes by a coarse clock (the kernel's tick, 1 to 10 ms): two changes can have one stamp. A stamp
is trusted once it is older than this, several ticks."""


class Stamped(Protocol):
    """The object that is glanced at: :class:`~wallaroo_spark.checkpoint.files.CheckpointFiles`."""

    def stamp(self) -> int | None:
        """When the commit log last changed; None where a look is not cheap."""


class Glance:
    """Remembers the stamp of the commit log from one glance to the next; not for several threads at once."""

    def __init__(self, files: Stamped) -> None:
        self._files = files
        self._known = 0

    def cheap(self) -> bool:
        """Whether glances tell anything here: on this machine's own file system."""
        return self._files.stamp() is not None

    def changed(self) -> bool:
        """Whether the commit log may have changed since the last call; False where glances tell nothing."""
        stamp = self._files.stamp()
        if stamp is None or (stamp == self._known and time.time_ns() - stamp >= COARSE_NS):
            return False
        self._known = stamp
        return True
