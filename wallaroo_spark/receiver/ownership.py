"""Checks that the driver reads the same checkpoint that the query writes.

If the driver read another folder, it would never see a commit, and no message would be acknowledged.
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
"""How long the checkpoint's metadata file may take to become visible.

Spark has written it when the start of a query returns. A choice: it only bounds how long a file system with stale
listings may take, and how late a wrong location is refused.
"""
_LOOK_SECONDS = 0.05
"""Pause between two reads of the metadata file. A choice: on a local disk the first read finds it."""


def require_own(
    spark: Any,
    query: Any,
    files: CheckpointFiles,
    location: str,
    stopping: threading.Event,
    seconds: float | None = None,
) -> None:
    """Wait until the checkpoint that ``files`` reads has the id of the started query.

    ``seconds`` is the longest wait (default :data:`OWN_SECONDS`). After it, raises :class:`CheckpointError`, with the
    location that the query writes to and the location that is read. Returns without a check when the query has
    ended, because the query's own error says more, and when ``stopping`` is set.
    """
    until = time.monotonic() + (OWN_SECONDS if seconds is None else seconds)
    while (other := files.query_id()) != str(query.id):
        if not query.isActive or stopping.is_set():
            return
        if time.monotonic() >= until:
            raise _not_own(query, files, other, _written_to(spark, query, location))
        stopping.wait(_LOOK_SECONDS)


def _not_own(query: Any, files: CheckpointFiles, other: str | None, written: str) -> CheckpointError:
    """The error for a checkpoint that has the id of another query, or (``other`` is None) no query's id."""
    problem = f"is of the query {other}" if other else "has no query's metadata"
    return CheckpointError(
        f"the query {query.id} writes its checkpoint to {written}, but the receiver reads {files.identity}, which "
        f"{problem}: no message would be acknowledged, so the query was stopped; give checkpoint= as a whole URI "
        "(hdfs://…, s3a://…, file:///…) of a location that this process can read as Spark does",
        code="checkpoint-elsewhere",
        query=str(query.id),
        found=other,
        written=written,
        read=files.identity,
    )


def _written_to(spark: Any, query: Any, location: str) -> str:
    """The location of the query's checkpoint, as Spark reports it; ``location`` when Spark does not report it."""
    try:
        if classic_context(spark) is not None:
            return str(query._jsq.streamingQuery().resolvedCheckpointRoot())
        # Spark Connect does not report the location, but it returns whole URIs for the input files of a read.
        metadata = spark.read.text(f"{location.rstrip('/')}/metadata").inputFiles()[0]
        return str(metadata).removesuffix("/metadata")
    except Exception:
        return f"{location} (as Spark resolves it)"
