"""Spark's checkpoint as values: the plan of each batch, what is committed, and a watcher that says when.

A connector is acknowledged because a commit file exists (``docs/decisions/acks-from-the-commit-log.md``); this is the
only room that reads one. Files of this package lie beside Spark's own, in a folder that Spark ignores.
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
