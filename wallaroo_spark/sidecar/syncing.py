"""Sync of local files and folders, so that they survive a crash of the machine. Needs no Arrow."""

from __future__ import annotations

import errno
import os


def sync_open_file(descriptor: int) -> None:
    """Return when the data of an open file, or the names in an open folder, are on the disk. Raises OSError."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        # A mounted object store does not support sync.
        if error.errno != errno.EINVAL:
            raise


def sync(path: str | os.PathLike[str]) -> None:
    """Return when the data of a local file, or the names in a local folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_open_file(descriptor)
    finally:
        os.close(descriptor)
