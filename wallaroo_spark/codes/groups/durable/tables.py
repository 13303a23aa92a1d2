"""Codes of the files of an application's batches and of its tables."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

TABLES = CodeGroup(
    "Batches and tables of an application",
    "Raised where an application's batches and tables are written and read.",
    (
        CodeEntry(
            "batch-not-kept",
            "The outputs of a batch were read after they were deleted.",
            "They were moved into the tables and are older than the batches that are kept; the reader was very late.",
            "Nothing is lost: records are in the tables, and open deliveries are given again to members that join. "
            "Keep more batches if it happens often.",
            "docs/pipelines/engine.md#files",
        ),
        CodeEntry(
            "stream-unknown",
            "`read_stream` was asked for a stream that the application does not have.",
            "The name is misspelt or has no namespace, or the folder belongs to another application.",
            "Give the stream as `namespace/name`; the message names the streams of the application.",
            "docs/pipelines/engine.md#tables-as-dataframes",
        ),
        CodeEntry(
            "delta-not-supported",
            "Logs of Delta are wanted for an application on a file system on which they are not written.",
            "The package `deltalake` opens the file systems itself, and only local folders and s3a are tested with it.",
            "Leave the setting `delta` out, or put the application's folder on a local disk or on s3a.",
            "docs/pipelines/engine.md#delta-tables",
        ),
        CodeEntry(
            "offsets-not-consecutive",
            "A batch has records of a partition whose offsets do not follow each other.",
            "A defect of this package: only the partition's controller gives offsets, without holes.",
            "Report it with the application's log; the batch is not committed, and nothing is written to the tables.",
            "docs/pipelines/engine.md#files",
        ),
    ),
)
