"""Local files and folders that outlive a crash of the machine; for programs that have no Arrow, too."""

from __future__ import annotations

import errno
import os


def sync_open_file(descriptor: int) -> None:
    """Return when the disk has the data of an open file, or the names of an open folder."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A mounted object store has nothing to sync.
        if error.errno != errno.EINVAL:
            raise


def sync(path: str | os.PathLike[str]) -> None:
    """Return when the disk has the data of a local file, or the names of a local folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_open_file(descriptor)
    finally:
        os.close(descriptor)
