"""Reads Spark's checkpoint: the plan of each batch, the committed batches, and a watcher that reports new commits.

A message is acknowledged when a commit file of its batch exists (``docs/decisions/acks-from-the-commit-log.md``). Only
this room reads commit files. Files of this package are beside Spark's own, in a folder that Spark ignores.
"""

from __future__ import annotations

from wallaroo_spark.checkpoint.commits import CheckpointWatcher, CommitFollower, CommitThread
from wallaroo_spark.checkpoint.files import CheckpointFiles
from wallaroo_spark.checkpoint.model import PlannedBatch, QueryProgress
