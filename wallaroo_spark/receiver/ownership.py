"""Whether the checkpoint that is read here is the one that the query writes; else nobody would be acknowledged.

Source: ``docs/decisions/one-writer-per-checkpoint.md``.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import CheckpointError
from wallaroo_spark.slots.spark_checks import classic_context

OWN_SECONDS = 10.0
"""How long a checkpoint's metadata may take to be seen; Spark has written it when a query's start returns."""
_LOOK_SECONDS = 0.05


def require_own(
    spark: Any,
    query: Any,
    files: CheckpointFiles,
    location: str,
    stopping: threading.Event,
    seconds: float | None = None,
) -> None:
    """Have a started query's id be that in the checkpoint that is read here.

    Raises :class:`CheckpointError`, with the place that the query writes to and the one that is read, when it is not
    after ``seconds``. Returns when the query has ended by then, whose own error says more, or when ``stopping`` is set.
    """
    until = time.monotonic() + (OWN_SECONDS if seconds is None else seconds)
    while (found := files.query_id()) != str(query.id):
        if not query.isActive or stopping.is_set():
            return
        if time.monotonic() >= until:
            raise _elsewhere(query, files, found, _written_to(spark, query, location))
        stopping.wait(_LOOK_SECONDS)


def _elsewhere(query: Any, files: CheckpointFiles, found: str | None, written: str) -> CheckpointError:
    there = f"is of the query {found}" if found else "has no query's metadata"
    return CheckpointError(
        f"the query {query.id} writes its checkpoint to {written}, and what is read here, {files.identity}, {there}: "
        "no message would be acknowledged, so the query was stopped; give checkpoint= as a whole URI (hdfs://…, "
        "s3a://…, file:///…) of a place that this process reaches as Spark does",
        query=str(query.id),
        found=found,
        written=written,
        read=files.identity,
    )


def _written_to(spark: Any, query: Any, location: str) -> str:
    """The place of the query's checkpoint, as Spark reports it."""
    try:
        if classic_context(spark) is not None:
            return str(query._jsq.streamingQuery().resolvedCheckpointRoot())
        # Connect does not tell; but it makes whole URIs of the files that it is to read.
        metadata = spark.read.text(f"{location.rstrip('/')}/metadata").inputFiles()[0]
        return str(metadata).removesuffix("/metadata")
    except Exception:
        return f"{location}, wherever Spark takes that to be"
