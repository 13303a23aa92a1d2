"""The lock of an application's folder, which excludes drivers with another registry or another name.

The lock in the registry excludes drivers that use the same registry and name. On a disk of this machine a lock of the
system excludes the others, and ends with the process that holds it. On other file systems, and on mounts that have no
such lock (``/dbfs`` of Databricks) or grant it to each machine (most FUSE programs), the driver renews a mark in the
folder, and a driver that starts watches it for a while.

A folder that is moved away, and another one that takes its place, have the lock of the first at the new place only. So
the driver looks again and again whether the file of its lock is still the one at its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.sidecar.folder import LOCK_FILE, SidecarFolder, lock_file
from wallaroo_spark.storage.locations import Location

MARK = "driver.json"
RENEWALS = 3
"""Renewals of the mark in the time for which another driver watches it. Two may be late."""
_LOOK_SECONDS = 0.5
"""Longest pause between two looks at the mark of another driver."""


class FolderLock:
    """The lock of one folder; ``seconds`` is the time for which the mark of another driver is watched.

    ``wait`` waits for some seconds, and returns whether the start is given up; None: it only waits. ``gone`` returns
    whether the driver with an owner's name is known to be gone, so that its mark need not be watched. One thread takes
    and releases the lock; another one may renew it meanwhile.
    """

    def __init__(
        self,
        folder: Location,
        spark: Any = None,
        seconds: float = 10.0,
        wait: Callable[[float], bool] | None = None,
        gone: Callable[[str], bool] = lambda owner: False,
    ) -> None:
        self._folder = SidecarFolder(folder, spark=spark)
        self._seconds, self._wait, self._gone = seconds, wait or threading.Event().wait, gone
        self._file: IO[str] | None = None
        self._owner = ""
        """The owner of the mark; empty when there is none of this driver."""
        self._seen: bytes | None = None
        """The mark of another driver as it was last seen, at ``_seen_at``."""
        self._seen_at = time.monotonic()
        self._renewals = 0
        self._renewed_at = 0.0

    def take(self, owner: str) -> None:
        """Take the lock. Raises :class:`ConfigurationError` when another driver has it, with the name of that, and
        :class:`CheckpointError` when the folder cannot be read or written.

        Where drivers write marks, this waits as long as the mark of a driver that was killed is watched.
        """
        if self._file is not None or self._owner:
            return
        self._file = lock_file(self._folder, owner, self._in_use)
        if self._file is None:
            self._watch_mark()
            self._owner = owner
            self._write_mark()

    def look(self) -> None:
        """Note the mark of another driver, as a standby does that waits for it: the mark is watched from now on.

        Raises :class:`CheckpointError` when the folder cannot be read.
        """
        if time.monotonic() >= self._seen_at + self._seconds / RENEWALS or self._seen is None:
            self._saw(self._folder.read(MARK))

    def renew(self) -> None:
        """Renew the mark, if that is due; on a disk of this machine :meth:`require`. To be called once a second.

        Raises :class:`ConfigurationError` when another driver has written its mark or the folder is another one, and
        :class:`CheckpointError`.
        """
        self.require()
        if not self._owner or time.monotonic() < self._renewed_at + self._seconds / RENEWALS:
            return
        found = self._folder.read(MARK)
        if found is not None and _owner_of(found) != self._owner:
            raise self._in_use(_owner_of(found))
        self._write_mark()

    def require(self) -> None:
        """Raise :class:`ConfigurationError` when the file of the lock is not the one at its path any more.

        The folder was moved, deleted or restored, and another driver may have locked the one that is there now. Costs a
        ``stat``; may be called from another thread. Does nothing where drivers write marks.
        """
        file = self._file
        if file is None:
            return
        try:
            held = os.fstat(file.fileno())
        except (OSError, ValueError):
            # Released meanwhile.
            return
        path = os.path.join(self._folder.path, LOCK_FILE)
        try:
            there = os.stat(path)
        except OSError:
            problem = "is gone"
        else:
            if (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino):
                return
            problem = "is another file"
        raise ConfigurationError(
            f"{path}, the lock of this driver, {problem}: the folder of the application was moved, deleted or restored "
            "while the driver ran, and another driver may run in the one that is there now; this one ends, start it "
            "again once the folder is whole",
            code="folder-replaced",
            path=path,
        )

    def release(self) -> None:
        """Release the lock, if it is held."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        owner, self._owner = self._owner, ""
        if owner:
            with contextlib.suppress(CheckpointError):
                found = self._folder.read(MARK)
                if found is not None and _owner_of(found) == owner:
                    self._folder.delete(MARK)

    def _watch_mark(self) -> None:
        """Return once another driver or its mark is gone, or the mark has stayed the same for the whole time."""
        found = self._saw(self._folder.read(MARK))
        while found is not None and time.monotonic() < self._seen_at + self._seconds:
            if self._gone(_owner_of(found)):
                return
            if self._wait(min(_LOOK_SECONDS, self._seconds / RENEWALS)):
                return
            now = self._folder.read(MARK)
            if now is not None and now != found:
                raise self._in_use(_owner_of(now))
            found = now

    def _saw(self, mark: bytes | None) -> bytes | None:
        if mark != self._seen:
            self._seen, self._seen_at = mark, time.monotonic()
        return mark

    def _write_mark(self) -> None:
        self._renewals += 1
        self._folder.write(MARK, json.dumps({"owner": self._owner, "renewals": self._renewals}).encode())
        self._renewed_at = time.monotonic()

    def _in_use(self, other: str) -> ConfigurationError:
        return ConfigurationError(
            f"another driver ({other or 'an unknown process'}) runs the application in "
            f"{self._folder.identity.rpartition('/')[0]}; stop it, or give this one another folder",
            code="application-in-use",
            owner=other or "an unknown process",
        )


def _owner_of(mark: bytes) -> str:
    """The owner of a mark; empty when it is damaged."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(mark).get("owner", ""))
    return ""
