"""Codes of transactional sinks and of the sink server."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

SINKS = CodeGroup(
    "Sinks",
    "Raised by a query that writes to a transactional sink, most of them as `SinkError`, and by `wallaroo-spark "
    "sink`. The batch is not lost: the query continues with it when it is started again.",
    (
        CodeEntry(
            "sink-unreachable",
            "A sink cannot be reached, or does not answer in time.",
            "Its process has ended, the network is cut, or its disk does not keep up.",
            "Check that the sink runs and that executors reach it, or raise its time limit.",
            "docs/sinks.md",
        ),
        CodeEntry(
            "sink-refused",
            "A connector sink refuses a session or a request.",
            "The cookie or the version differs, another query has the same sink name, or the sink cannot write. The "
            "message has the sink's reason; its log says more.",
            "Act on the reason, then start the query again.",
            "docs/sinks.md#connector-sinks",
        ),
        CodeEntry(
            "sink-columns",
            "The columns or the values of the rows are not what the sink takes.",
            "A column is missing, has another type or name, or has a null where none may be.",
            "Select, rename, cast or filter the rows before they are written, as the message says.",
            "docs/sinks.md#stores-with-transactions-of-their-own",
        ),
        CodeEntry(
            "sink-target",
            "The table, topic, key or folder of the sink is missing, or is of another kind.",
            "The name is misspelt, the target was not created, or the server is not the one that the sink needs.",
            "Create the target, or correct its name or the address.",
            "docs/sinks.md#stores-with-transactions-of-their-own",
        ),
        CodeEntry(
            "sink-server-settings",
            "The store's server is set so that the chosen mode of the sink cannot work.",
            "Two-phase commit in PostgreSQL needs `max_prepared_transactions` above the number of partitions.",
            "Change the server's setting, or use the mode that the message names.",
            "docs/sinks.md#postgresql",
        ),
        CodeEntry(
            "sink-write-failed",
            "The store could not carry out an action.",
            "The message has the store's own reason: a right that is missing, no room, a broken connection, a "
            "constraint.",
            "Mend that in the store; the query's next start delivers the batch again.",
            "docs/sinks.md#stores-with-transactions-of-their-own",
        ),
        CodeEntry(
            "sink-rows-lost",
            "Rows that were prepared for a commit are gone.",
            "A staged file, a prepared transaction or a staging table was removed, or the store was restored from a "
            "copy.",
            "Restore it, or deliver the batch again from an older checkpoint.",
            "docs/sinks.md#stores-with-transactions-of-their-own",
        ),
        CodeEntry(
            "sink-batch-unknown",
            "The batch is older than all batches that the sink's log remembers.",
            "The query was started with an old copy of its checkpoint, so the batch may have been delivered.",
            "Start the query with the newest checkpoint, or remove the folder that the message names to deliver the "
            "batch again.",
            "docs/decisions/sink-decisions.md",
        ),
        CodeEntry(
            "sink-batch-aborted",
            "A batch was aborted because a partition could not be written.",
            "A task has failed, or the sink voted to abort. The message has the partition's reason.",
            "Mend the reason; the query's next start delivers the batch again.",
            "docs/sinks.md#a-batch-in-the-driver",
        ),
        CodeEntry(
            "sink-batch-uncommitted",
            "A batch is decided, and the sink could not commit it yet.",
            "The sink failed between the decision and the commit. No row is lost.",
            "Mend the reason in the message; the query's next start commits the batch.",
            "docs/sinks.md#a-batch-in-the-driver",
        ),
        CodeEntry(
            "sink-partition-twice",
            "A partition of a batch is written by two tasks at the same time.",
            "Spark runs slow tasks twice (`spark.speculation`), or two queries use one checkpoint.",
            "Turn `spark.speculation` off for this query; run one query per checkpoint.",
            "docs/sinks.md#connector-sinks",
        ),
        CodeEntry(
            "sink-log-damaged",
            "The log or the output of a sink server is not as the server wrote it.",
            "Somebody else wrote to the folder or cut a file, or the disk has lost data.",
            "Restore the folder from a copy, or start with an empty one. Find out which transactions are in the "
            "outputs before it is used again.",
            "docs/sinks.md#what-is-on-the-servers-disk",
        ),
        CodeEntry(
            "sink-folder-in-use",
            "A folder of a sink is used by another server or another query.",
            "A folder belongs to one server, or to one query.",
            "Stop the other one, or name another folder.",
            "docs/sinks.md#files",
        ),
        CodeEntry(
            "no-atomic-rename",
            "The file system cannot rename a folder in one step.",
            "Object stores copy file by file, so readers could see a batch in part.",
            "Use a local path or HDFS, or Spark's own sinks for that store.",
            "docs/sinks.md#files",
        ),
    ),
)
