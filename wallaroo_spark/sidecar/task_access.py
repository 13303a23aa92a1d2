"""Checks in advance that Spark's tasks can use the files beside a checkpoint; writes record batches to files."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from wallaroo_spark.errors import CheckpointError, ConfigurationError, WallarooError
from wallaroo_spark.extras import command
from wallaroo_spark.runtime.job_errors import in_short
from wallaroo_spark.runtime.spark_checks import classic_context, count_task_slots, on_one_machine
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location, for_tasks

FOLDER = "probes"
MOST_TASKS = 64
"""The most tasks of a check. A choice: a task takes milliseconds, and the first one of an executor a second."""
_WAYS_OUT = {
    "hdfs": f"install hdfs-native for the executors' Python: {command(['hdfs'])}",
    "s3": "give the executors' machines credentials, or set spark.hadoop.fs.s3a.access.key and .secret.key",
    "file": "give a location that all machines share, because the driver and each executor have a disk of their own",
}


def require_reach(spark: Any, location: Location, who: str) -> None:
    """Check that tasks can read a file that the driver writes to ``location``, and the driver one that a task writes.

    Where Spark's task slots are known there are as many tasks, so that executors of all machines take part. A local
    disk needs no check when Spark runs on one machine. Raises :class:`ConfigurationError`, which names the user of the
    location (``who``) and the remedy.
    """
    folder = SidecarFolder(location, FOLDER, spark=spark)
    context = classic_context(spark)
    if folder.local and context is not None and on_one_machine(context.master):
        return
    task_location, token = for_tasks(location, spark), uuid.uuid4().hex
    by_driver, by_task = f"{token}.driver", f"{token}.task"
    tasks = 1 if context is None else min(max(1, count_task_slots(context)), MOST_TASKS)
    folder.write(by_driver, b"driver")
    try:
        probe = spark.range(0, tasks, 1, tasks).mapInArrow(_probe(task_location, by_driver, by_task), "problem string")
        try:
            problem = next((row.problem for row in probe.collect() if row.problem), "")
        except Exception as error:
            problem = in_short(error)
        if not problem and folder.read(by_task) is None:
            problem = "the driver cannot read a file that a task has written there"
    finally:
        for name in (by_driver, by_task):
            with contextlib.suppress(CheckpointError):
                folder.delete(name)
    if problem:
        scheme = folder.identity.partition(":")[0]
        raise ConfigurationError(
            f"{who} needs {folder.identity.removesuffix(f'/{FOLDER}')} in its tasks, which do not reach it: {problem}; "
            + _WAYS_OUT.get(scheme, "check that the executors may use that file system"),
            code="checkpoint-not-on-executors",
            location=folder.identity,
        )


def _probe(location: Location, by_driver: str, by_task: str) -> Any:
    """Return the function that reads the driver's file, and in one task writes the task's file, within mapInArrow."""

    def probe(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        numbers = [number for piece in rows for number in piece.column(0).to_pylist()]
        problem = ""
        try:
            folder = SidecarFolder(location, FOLDER)
            if folder.read(by_driver) is None:
                problem = f"{folder.identity} does not have the file that the driver has written"
            elif 0 in numbers:
                folder.write(by_task, b"task")
        except WallarooError as error:
            problem = error.message
        yield pa.RecordBatch.from_pydict({"problem": [problem]})

    return probe


def write_arrow(
    stream: Any,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema | None = None,
    compression: str | None = None,
    random_access: bool = False,
) -> int:
    """Write batches in Arrow's streaming format, or with ``random_access`` in its file format; return the row count.

    ``schema`` is by default that of the first batch; with neither a schema nor a batch, no byte is written.
    ``compression`` is ``lz4``, ``zstd`` or None. Errors of the stream and of ``batches`` are passed on.
    """
    new = pa.ipc.new_file if random_access else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    writer = None if schema is None else new(stream, schema, options=options)
    rows = 0
    for batch in batches:
        if writer is None:
            writer = new(stream, batch.schema, options=options)
        writer.write_batch(batch)
        rows += batch.num_rows
    if writer is not None:
        writer.close()
    return rows


def as_arrow_stream(*batches: pa.RecordBatch) -> bytes:
    """Return batches, at least one, as the bytes of an Arrow IPC stream, their schema included."""
    sink = pa.BufferOutputStream()
    write_arrow(sink, batches)
    data: bytes = sink.getvalue().to_pybytes()
    return data
