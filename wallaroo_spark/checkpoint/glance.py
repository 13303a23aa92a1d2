"""A cheap check whether the commit log may have changed since the last check.

Source: ``docs/decisions/acks-from-the-commit-log.md``.
"""

from __future__ import annotations

import time
from typing import Protocol

from wallaroo_spark.sidecar.listing import COARSE_NS

GLANCE_SECONDS = 0.02
"""Pause between two checks. A choice: a check costs one ``stat``, and the pause delays an ACK by at most this."""


class Stamped(Protocol):
    """An object whose changes can be checked: :class:`~wallaroo_spark.checkpoint.files.CheckpointFiles`."""

    def stamp(self) -> int | None:
        """When the commit log last changed, in ns since 1970; None when the check is not cheap."""


class Glance:
    """Compares the modification time of the commit log with that of the last check. Not for several threads at once."""

    def __init__(self, files: Stamped) -> None:
        self._files = files
        self._known = 0

    def cheap(self) -> bool:
        """Whether the check works here: only on this machine's own file system."""
        return self._files.stamp() is not None

    def changed(self) -> bool:
        """Whether the commit log may have changed since the last call; False where the check does not work."""
        stamp = self._files.stamp()
        if stamp is None or (stamp == self._known and time.time_ns() - stamp >= COARSE_NS):
            return False
        self._known = stamp
        return True
