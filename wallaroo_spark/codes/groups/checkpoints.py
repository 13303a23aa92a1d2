"""Codes of checkpoints, the plans beside them, and the location of both."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

CHECKPOINTS = CodeGroup(
    "Checkpoint",
    "Raised when a query starts, when a batch is planned, and by topics and sinks whose files stand beside the "
    "checkpoint.",
    (
        CodeEntry(
            "checkpoint-location",
            "The location of the checkpoint cannot be used.",
            "It is empty, its scheme is not known to Spark, the jars or credentials of its file system are missing, "
            "or it is not an absolute path or URI.",
            "Give a directory, or a whole URI (`hdfs://…`, `s3a://…`, `file:///…`), and check Spark's settings "
            "`spark.hadoop.fs.…`.",
            "docs/spark.md#checkpoints",
        ),
        CodeEntry(
            "checkpoint-not-on-executors",
            "Tasks on executors do not reach the checkpoint's file system.",
            "A local path is another folder on each machine, or an executor has no access to the file system.",
            "Use a location that driver and executors share, and give executors the credentials for it.",
            "docs/sinks.md#a-batch-in-the-driver",
        ),
        CodeEntry(
            "checkpoint-elsewhere",
            "The query writes its checkpoint to another place than the one that the receiver reads.",
            "The location means different places to Spark and to this process, so no message would be acknowledged. "
            "The query was stopped.",
            "Give `checkpoint=` as a whole URI of a location that the driver's Python reads as Spark does.",
            "docs/architecture.md#acknowledgements-come-from-the-commit-log",
        ),
        CodeEntry(
            "checkpoint-in-use",
            "Another query uses the checkpoint at this moment.",
            "Two queries with one checkpoint would commit different batches under the same number. A driver that was "
            "replaced may still run for a while.",
            "Stop one of the two queries, or give one of them another checkpoint.",
            "docs/decisions/one-writer-per-checkpoint.md",
        ),
        CodeEntry(
            "checkpoint-of-other-receiver",
            "The checkpoint was written by a query that reads another receiver.",
            "The references in it are of other streams, so the query would wait for ever.",
            "Give the receiver its former name, or use another checkpoint.",
            "docs/spark.md#checkpoints",
        ),
        CodeEntry(
            "checkpoint-of-other-query",
            "Files that a topic or a sink keeps beside a checkpoint are of another query.",
            "The topic or the writer was made with another location than the query's own, or the checkpoint was "
            "created anew and these files were not deleted.",
            "Give the topic or the writer the query's own checkpoint. After a checkpoint was created anew, delete the "
            "folder that the message names; the message says which batches are then delivered again.",
            "docs/sinks.md#a-batch-in-the-driver",
        ),
        CodeEntry(
            "checkpoint-ambiguous",
            "The checkpoint has several references for one stream, and opaque ids have no order.",
            "Several sources of one query read the same receiver with `messageIds=opaque`, and one of them was behind "
            "when the query stopped.",
            "Use another checkpoint, and read the receiver once in a query.",
            "docs/protocol.md#points-of-reference",
        ),
        CodeEntry(
            "checkpoint-version",
            "The checkpoint is in a format that this release does not read.",
            "It was written by a newer release of this package or of Spark.",
            "Use the release that wrote it, or start with a new checkpoint.",
            "docs/spark.md#checkpoints",
        ),
        CodeEntry(
            "checkpoint-damaged",
            "A file in the checkpoint, or beside it, is not as it was written.",
            "A file was changed, cut short or restored in part, or the disk has lost data.",
            "If it happens again, restore the whole checkpoint with its folder `_wallaroo`, or start with a new one.",
            "docs/spark.md#checkpoints",
        ),
        CodeEntry(
            "plan-missing",
            "An offset of the checkpoint names a plan, and the plan cannot be found.",
            "The folder `_wallaroo` beside the checkpoint was deleted or not restored, or this process does not "
            "reach it.",
            "Restore that folder together with the rest of the checkpoint; check that Redis and the file system are "
            "reachable and that the query was started with `receiver.start_query`.",
            "docs/decisions/plans-beside-the-checkpoint.md",
        ),
    ),
)
