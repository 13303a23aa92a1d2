"""Makes Spark write the files of a checkpoint on a local disk with few processes.

Spark's default manager of checkpoint files writes through Hadoop's FileContext. On a local disk without Hadoop's native
library this starts about ten processes (``readlink``, ``chmod``) for each file of ``offsets/`` and ``commits/``, and
takes four times as long as the manager that this module selects.

The selected manager checks whether the file exists and then renames in two steps, first the file and then its checksum.
This has two consequences. Two queries on one checkpoint could overwrite each other's files; the receiver's lock on the
checkpoint excludes that. And when the process crashes between the two steps while it replaces a file, as state stores
do, the new file is left with the checksum of the old one; such stale checksums are deleted before a query starts. (The
default manager keeps no checksums at all.) Source: ``docs/decisions/local-checkpoint-files.md``.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from wallaroo_spark.errors import one_line
from wallaroo_spark.runtime.spark_checks import classic_context

log = one_line("wallaroo_spark.runtime")

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
PACKAGES = (
    "org.apache.spark.sql.execution.streaming.checkpointing",
    "org.apache.spark.sql.execution.streaming",
)
MANAGER = "FileSystemBasedCheckpointFileManager"
_STATE = "state"
_starting = threading.Lock()


@contextlib.contextmanager
def quick_on_local_disk(spark: Any, folder: str | None) -> Iterator[None]:
    """Select the manager that starts no processes for the queries that are started within the block.

    ``folder`` is the path of the checkpoint on this machine's disk; None when the checkpoint is on another file system.
    Nothing is selected then, in a session whose user has set a manager, and in a session without a JVM gateway.
    """
    if folder is None:
        yield
        return
    # Also when the user has set the manager: a stale checksum makes the query fail.
    forget_stale_checksums(folder)
    # Receivers of one session start their queries one after another: otherwise one of them would take the setting of
    # another for the user's.
    with _starting:
        manager = _manager(spark) if spark.conf.get(SETTING, None) is None else None
        if manager is not None:
            spark.conf.set(SETTING, manager)
        try:
            yield
        finally:
            # Spark has copied the session's settings for the query.
            if manager is not None:
                spark.conf.unset(SETTING)


def _manager(spark: Any) -> str | None:
    """The full name of the manager's class in this Spark; None when Spark has no such class or there is no gateway."""
    context = classic_context(spark)
    if context is None:
        return None
    loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for package in PACKAGES:
        name = f"{package}.{MANAGER}"
        if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
            return name
    return None


def forget_stale_checksums(folder: str) -> None:
    """Delete each checksum of a state file that is older than the file itself.

    Raises no error: a checksum that cannot be read stays, and Spark reports it if it does not match.
    """
    for path, _, names in os.walk(os.path.join(folder, _STATE)):
        for name in names:
            if not name.startswith(".") or not name.endswith(".crc"):
                continue
            checksum, file = os.path.join(path, name), os.path.join(path, name[1:-4])
            with contextlib.suppress(OSError):
                if os.stat(checksum).st_mtime_ns < os.stat(file).st_mtime_ns:
                    os.unlink(checksum)
                    log.info("deleted the stale checksum %s: its file has been replaced since", checksum)
