"""Spark's checkpoint as values: what each batch was planned to hold, what is committed, and a watcher that says when.

A connector is acknowledged because a commit file exists (design, "ACKs come from the commit log"); this is the only
place that reads one. What is written here is beside Spark's own files, in a folder that Spark passes over.
"""

from __future__ import annotations

from wallaroo_spark.checkpoint.files import CheckpointFiles
from wallaroo_spark.checkpoint.model import (
    PlannedBatch,
    QueryProgress,
    holes,
    is_commit,
    newest_committed,
    newest_planned,
    parse_offsets,
    receivers_in,
)
from wallaroo_spark.checkpoint.watcher import CheckpointWatcher

__all__ = [
    "CheckpointFiles",
    "CheckpointWatcher",
    "PlannedBatch",
    "QueryProgress",
    "holes",
    "is_commit",
    "newest_committed",
    "newest_planned",
    "parse_offsets",
    "receivers_in",
]
