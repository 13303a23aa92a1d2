"""A lock of an application's folder on a local disk, which ends with the process that holds it.

The lock in the registry excludes drivers that use the same registry. This one also excludes a driver on the same
machine with another registry, such as an embedded one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import IO, Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location

FILE = "driver.lock"


class FolderLock:
    """The lock of one folder. Does nothing where the folder is not on a disk of this machine."""

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._folder = SidecarFolder(folder, spark=spark)
        self._file: IO[str] | None = None

    def take(self, owner: str) -> None:
        """Take the lock. Raises :class:`ConfigurationError` when another process holds it, with the name of that."""
        if not self._folder.local or self._file is not None:
            return
        path = os.path.join(self._folder.folder(), FILE)
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115  # the lock lasts as long as the file is open
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            other = file.read().strip() or "an unknown process"
            file.close()
            raise ConfigurationError(
                f"another driver ({other}) runs the application in {self._folder.identity.rpartition('/')[0]}; "
                "stop it, or give this one another folder",
                code="application-in-use",
                owner=other,
            ) from None
        file.truncate(0)
        file.write(owner)
        file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock, if it is held."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
