"""Codes of the operator that runs controllers and functions in tasks."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

OPERATOR = CodeGroup(
    "Operator of durable streams",
    "Raised in the tasks of an application's query; the query ends with the error.",
    (
        CodeEntry(
            "pipeline-records-missing",
            "A pipeline needs records of its input stream that are not in the stream's table.",
            "Files of the table were deleted or moved by hand. Retention is no cause: it tells the pipeline first.",
            "Restore the files; the query then goes on where it was.",
            "docs/pipelines/engine.md#the-operator",
        ),
        CodeEntry(
            "pipeline-state",
            "The state of a key contradicts its records.",
            "A defect of this package, or a checkpoint that belongs to another folder.",
            "Use the checkpoint of the application's own folder, or report the defect with the message.",
            "docs/pipelines/engine.md#the-operator",
        ),
    ),
)
