"""Codes of an application of durable streams in the driver."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

APPLICATIONS = CodeGroup(
    "Application of durable streams",
    "Raised in the driver by `Application`, and by `wallaroo-spark run`.",
    (
        CodeEntry(
            "application-in-use",
            "Another driver runs the application.",
            "A folder, and a name in a registry, belong to one driver at a time. The lock of a driver that was killed "
            "ends with its process on a local disk, and in the registry when it expires.",
            "Stop the other driver, wait until its lock has expired, or give this application another folder or name.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "schema-empty",
            "The application's folder has no schema, or its schema declares no stream.",
            "Nothing was applied yet, or to another folder.",
            "Declare streams in a YAML file and run `wallaroo-spark apply FILE --app FOLDER`.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "function-not-importable",
            "The function of a stage that runs inside Spark cannot be imported.",
            "`run` of the stage is misspelt, its package is not installed in the driver's or the executors' Python, or "
            "its module fails when it is imported. Tasks have neither the driver's folder nor its `sys.path`.",
            "Install the package on the driver and the executors, give its file with `--py-files`, or correct `run` "
            "and apply the schema again.",
            "docs/pipelines/engine.md#functions-of-stages",
        ),
        CodeEntry(
            "checkpoint-behind-outputs",
            "The checkpoint of the application is missing, or older than the outputs of its batches.",
            "The folder `checkpoint` was deleted, or restored without the rest of the folder. The state of "
            "all streams is in it.",
            "Restore the whole folder as it was at one time, or begin with an empty folder.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "connect-not-supported",
            "An application of durable streams was given a session of Spark Connect.",
            "Its driver acts on the files of each committed batch, and a client of Spark Connect does not see them.",
            "Run it in the driver of a classic session: `wallaroo-spark run --master …`, or spark-submit.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "spark-too-old",
            "The version of Spark is too old for an application of durable streams.",
            "The operator of its keys needs a part of Spark that earlier versions do not have.",
            "Use Spark 4.2 or newer, in the driver and on the cluster.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "state-partitions-fixed",
            "`state_partitions` differs from the number in the application's checkpoint.",
            "Spark divides the state of a query once, at its first batch.",
            "Leave the setting out, or give the number that the message names.",
            "docs/pipelines/engine.md#the-application",
        ),
    ),
)
