"""A check, before it is needed, that tasks can use the driver's files beside a checkpoint."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wallaroo_spark.errors import CheckpointError, ConfigurationError, WallarooError
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.slots.job_errors import in_short
from wallaroo_spark.slots.spark_checks import classic_context, on_one_machine
from wallaroo_spark.storage.locations import Location, for_tasks

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "probes"
_WAYS_OUT = {
    "hdfs": "install hdfs-native for the executors' Python: pip install 'wallaroo-spark[hdfs]'",
    "s3": "give the executors' machines credentials, or set spark.hadoop.fs.s3a.access.key and .secret.key",
    "file": "give a place that all machines share, for driver and executors see disks of their own there",
}


def require_reach(spark: Any, location: Location, who: str) -> None:
    """Check that a task reads a file that the driver writes to ``location``, and the driver one that the task writes.

    A local disk needs no check when Spark runs on one machine. Raises :class:`ConfigurationError`, which names ``who``
    needs the location, and the way out.
    """
    ours = SidecarFolder(location, FOLDER, spark=spark)
    context = classic_context(spark)
    if ours.local and context is not None and on_one_machine(context.master):
        return
    place, token = for_tasks(location, spark), uuid.uuid4().hex
    asked, answered = f"{token}.driver", f"{token}.task"
    ours.write(asked, b"driver")
    try:
        probe = spark.range(1).coalesce(1).mapInArrow(_probe(place, asked, answered), "problem string")
        try:
            problem = "".join(row.problem for row in probe.collect())
        except Exception as error:
            problem = in_short(error)
        if not problem and ours.read(answered) is None:
            problem = "what a task has written there cannot be seen by the driver"
    finally:
        for name in (asked, answered):
            with contextlib.suppress(CheckpointError):
                ours.delete(name)
    if problem:
        scheme = ours.identity.partition(":")[0]
        raise ConfigurationError(
            f"{who} needs {ours.identity.removesuffix(f'/{FOLDER}')} in its tasks, which do not reach it: {problem}; "
            + _WAYS_OUT.get(scheme, "see that the executors may use that file system"),
            location=ours.identity,
        )


def _probe(place: Location, asked: str, answered: str) -> Any:
    def probe(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in rows:
            pass
        problem = ""
        try:
            theirs = SidecarFolder(place, FOLDER)
            if theirs.read(asked) is None:
                problem = f"{theirs.identity} has nothing there that the driver has written"
            else:
                theirs.write(answered, b"task")
        except WallarooError as error:
            problem = error.message
        yield pa.RecordBatch.from_pydict({"problem": [problem]})

    return probe
