"""Codes of the receiver, its slots, its query and its source."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

RECEIVER = CodeGroup(
    "Receiver, slots and query",
    "Raised in the driver by `Receiver`, by the source in a query, and by `wallaroo-spark receive`.",
    (
        CodeEntry(
            "receiver-not-started",
            "A receiver, topic, or test receiver or application is used before it was started, or after its end.",
            "The call needs running workers or a running publisher.",
            "Call `start()` first, or use it in a `with` statement.",
            "docs/architecture.md#the-picture",
        ),
        CodeEntry(
            "receiver-busy",
            "The receiver is being started or stopped by another thread.",
            "Two calls of one program overlap: one starts a query or the receiver while the other stops it.",
            "Call again when the other call has returned.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "name-in-use",
            "Another driver runs a receiver or a topic of this name in the same registry.",
            "A name belongs to one driver at a time, which holds a lock with its name in Redis. The lock of a driver "
            "that was killed expires by itself.",
            "Stop the other driver, wait until its lock has expired, or give this one another name.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "receiver-feeds-query",
            "The receiver feeds a query already.",
            "Acknowledgements come from the commit log of one query, so a receiver feeds one query at a time.",
            "Stop the running query first, or write to several sinks in one `foreachBatch`.",
            "docs/architecture.md#acknowledgements-come-from-the-commit-log",
        ),
        CodeEntry(
            "query-of-other-receiver",
            "The query does not read the receiver that starts it, or also reads one that this program does not run.",
            "`start_query` was called with a writer that is built on another DataFrame than that of `stream()`.",
            "Build the query on the DataFrame that `stream()` of this receiver returns, and start every receiver "
            "that the query reads in this program.",
            "docs/architecture.md#the-source",
        ),
        CodeEntry(
            "source-misused",
            "`format('wallaroo')` is used in a way that the source does not support.",
            "A schema was given, or the name of the receiver is missing, or this driver does not run that receiver.",
            "Use `Receiver.stream()`, which sets all options, and leave `.schema(…)` out.",
            "docs/architecture.md#the-source",
        ),
        CodeEntry(
            "trigger-once",
            "The trigger `once` cannot be used.",
            "Spark plans its only batch before a connector has sent anything, so it would read nothing.",
            "Use `.trigger(availableNow=True)`, which waits until the connectors are quiet.",
            "docs/spark.md#sources",
        ),
        CodeEntry(
            "async-progress",
            "Asynchronous progress tracking cannot be used.",
            "With it a planned range may change after a restart, so messages could be lost; its checkpoints lack "
            "batches.",
            "Remove the option `asyncProgressTrackingEnabled`; a checkpoint that was written with it cannot be "
            "continued.",
            "docs/spark.md#checkpoints",
        ),
        CodeEntry(
            "too-few-task-slots",
            "The cluster has too few task slots for the workers and the query.",
            "Each worker takes a task slot for as long as it runs, and the query needs at least one more, so no batch "
            "would ever run.",
            "Use fewer workers, or give Spark more cores, as the message shows.",
            "docs/spark.md#tasks-and-jobs",
        ),
        CodeEntry(
            "registry-not-shared",
            "The embedded Redis is used with a Spark master that may have several machines.",
            "The embedded Redis serves this machine alone, so workers on other machines could not reach it.",
            "Give the URL of a Redis that all machines reach: `registry=redis://host:6379`.",
            "docs/options.md",
        ),
        CodeEntry(
            "spark-not-started",
            "Spark did not start.",
            "Java is missing, a setting of Spark is wrong, or the cluster did not accept the application.",
            "Read Spark's own messages; `wallaroo-spark check` looks at everything that a receiver needs.",
            "docs/cli.md#wallaroo-spark-check",
        ),
        CodeEntry(
            "query-refused",
            "Spark refuses the query.",
            "An expression, the sink or the trigger is not valid; the message has Spark's reason.",
            "Correct `select`, `sink` or `trigger`.",
            "docs/cli.md#wallaroo-spark-receive",
        ),
        CodeEntry(
            "workers-not-started",
            "The tasks of workers or publishers did not start in time, or cannot start.",
            "The cluster has no free task slot or no executor yet, an executor lacks a package, or a port is in use. "
            "The message has the last error.",
            "Mend the error that the message names; look at the application in Spark's UI; `wallaroo-spark check` "
            "looks at the executors.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "demo-failed",
            "A run of `wallaroo-spark demo` did not finish.",
            "Its query failed, its connectors gave up, or nothing moved for long.",
            "Read the logs in the folder that the message names.",
            "docs/cli.md#wallaroo-spark-demo",
        ),
        CodeEntry(
            "resend-missing",
            "A batch needs messages that no connector has sent again within `replayTimeout`.",
            "A worker died after the batch was planned, and the connectors that sent these messages did not come back. "
            "The query fails, and nothing is lost.",
            "Start the connectors that the message names, and then the query again with the same checkpoint; or raise "
            "`replayTimeout`. With `failOnDataLoss=false` the query goes on without the messages.",
            "docs/protocol.md#rewinding",
        ),
    ),
)
