"""How Spark writes the files of a checkpoint on a local disk: by a rename that starts no processes.

Spark's default writes through Hadoop's FileContext, which on a local disk without Hadoop's native library starts some
ten processes (``readlink``, ``chmod``) for each file of ``offsets/`` and ``commits/``, and takes four times as long as
the manager that is set here. That one renames in two steps, first the file and then its checksum, and looks whether
the file is there before it renames. So it gives up two things: two queries on one checkpoint could overwrite each
other's files, which the receiver's lock excludes; and a death between the two steps leaves a file that replaced
another, as Spark's state stores write them, with the checksum of the other one. Those checksums are deleted before a
query starts: the default keeps none at all. Source: ``docs/decisions/checkpoint-without-processes.md``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

from wallaroo_spark.errors import one_line
from wallaroo_spark.slots.spark_checks import classic_context

log = one_line(logging.getLogger("wallaroo_spark.receiver"))

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
    """Within the block, a query that starts writes its checkpoint without starting processes, where that is possible.

    ``folder`` is the checkpoint on this machine's disk, None where it is elsewhere. A session in which somebody has set
    the manager keeps that one, and so does one without a JVM gateway.
    """
    if folder is None:
        yield
        return
    # Whoever has set the manager, what a death left is in the way of the query.
    forget_stale_checksums(folder)
    # Receivers of one session start their queries in turn: one must not see the setting of another for its user's.
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
    """The full name of the class in this Spark, None where there is none."""
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
    """Delete the checksums of state files that were written before the file they lie beside.

    Raises nothing: a checksum that cannot be read is left, and Spark reports it if it is wrong.
    """
    for path, _, names in os.walk(os.path.join(folder, _STATE)):
        for name in names:
            if not name.startswith(".") or not name.endswith(".crc"):
                continue
            checksum, file = os.path.join(path, name), os.path.join(path, name[1:-4])
            with contextlib.suppress(OSError):
                if os.stat(checksum).st_mtime_ns < os.stat(file).st_mtime_ns:
                    os.unlink(checksum)
                    log.info("deleted %s, the checksum of a file that another has replaced", checksum)
