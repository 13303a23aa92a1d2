"""A lock of the operating system on a file of a folder: it lasts as long as the process that holds it lives.

Unlike a lock in the registry it does not expire, so a driver that is only stopped (SIGSTOP) and goes on later still has
it, and no other driver writes the folder meanwhile. Source: ``docs/decisions/one-writer-per-checkpoint.md``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import IO

from wallaroo_spark.errors import CheckpointError, WallarooError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import locks_are_local

FILE = "driver.lock"


def lock_file(folder: SidecarFolder, owner: str, in_use: Callable[[str], WallarooError]) -> IO[str] | None:
    """Lock a file of the folder, and return the file, whose end releases the lock.

    None where no lock excludes other machines: on other file systems than local ones, on mounts that grant a lock to
    each machine, and on those without locks. Raises the error that ``in_use`` makes for the owner of the lock when
    another process has it, and :class:`CheckpointError` when the file cannot be written.
    """
    if not folder.local or locks_are_local(folder.folder()):
        return None
    path = os.path.join(folder.folder(), FILE)
    try:
        with contextlib.ExitStack() as unlocked:
            file = unlocked.enter_context(open(path, "a+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise in_use(file.read().strip() or "an unknown process") from None
            except OSError:
                return None
            # On a full disk the lock would exclude others without its owner's name, too, but nothing else could be
            # written.
            file.truncate(0)
            file.write(owner)
            file.flush()
            # The lock lasts as long as the file is open.
            unlocked.pop_all()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}; check that this process may write to that folder, "
            "that its file system is not read-only, and that it has free space",
            code="checkpoint-unwritable",
            location=path,
        ) from error
    return file
