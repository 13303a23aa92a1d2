"""Synced files: what was written is on the disk. Only the standard library, for programs without pyarrow."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import Any


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


def sync_file_system(path: str | os.PathLike[str]) -> None:
    """Return when everything that was written to the file system of a local path is on its disk. Raises OSError.

    What other programs have written to it is among that. Where the system has no such call, all disks are synced.
    """
    call = _syncfs()
    if call is None:
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if call(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)


@cache
def _syncfs() -> Any:
    """The call of the C library, which Python has not; None where it is missing."""
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
