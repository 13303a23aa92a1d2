"""Codes of the sentence on what a receiver, a slot, an instance or a stream waits for.

The titles are the meanings in ``docs/status.md``.
"""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

_CAUSES = "docs/status.md#causes"

STATUS = CodeGroup(
    "What a receiver waits for",
    "Causes in `wallaroo-spark status` and `top`, on the status page, and in `receiver.status()`; several of them are "
    "codes of errors, too.",
    (
        CodeEntry(
            "not-running",
            "No driver and no worker of the receiver runs.",
            "The program that runs the receiver has ended or was not started, or this is another registry or name.",
            "Start it with `wallaroo-spark receive` or `Receiver.start`, or check the name and the registry; "
            "`wallaroo-spark list` shows the receivers of a registry.",
            "docs/cli.md#wallaroo-spark-list",
            also=("WallarooDriverDown",),
        ),
        CodeEntry(
            "registry-away",
            "The registry (Redis) does not answer.",
            "Redis has ended, the network to it is cut, its password has changed, or its user lacks a right.",
            "Start Redis again, or mend the network to it. Nothing in it needs to be restored, and sessions that are "
            "open go on.",
            "docs/decisions/redis-holds-nothing-durable.md",
            also=("WallarooRegistryAway", "away-from-driver", "away-from-workers"),
        ),
        CodeEntry(
            "checkpoint-unwritable",
            "The query has failed because the checkpoint cannot be written or read.",
            "The rights, the mount or the credentials of the checkpoint's location have changed, or it is full.",
            "Make the checkpoint writable for the driver (and for executors, where topics and sinks write beside "
            "it), then start the query again.",
            "docs/spark.md#checkpoints",
        ),
        CodeEntry(
            "checkpoint-unreadable",
            "The driver cannot read the checkpoint, so no commit is acknowledged.",
            "Spark commits batches, and this process cannot read Spark's commit log.",
            "Make the checkpoint readable for the driver's Python: rights, mount, credentials.",
            "docs/architecture.md#acknowledgements-come-from-the-commit-log",
            also=("WallarooCheckpointUnreadable", "unreadable"),
        ),
        CodeEntry(
            "query-failed",
            "The query has ended with an error.",
            "A function of the query, its sink or its source has failed. The message has the reason.",
            "Mend that, then start the query again: it continues from its checkpoint, and connectors send again what "
            "was not acknowledged.",
            _CAUSES,
            also=("WallarooQueryNotRunning", "failed"),
        ),
        CodeEntry(
            "worker-frozen",
            "The process of a worker accepts calls and does not answer them.",
            "It was stopped by a signal, swaps, or hangs.",
            "The driver replaces it once its lease has been expired for long; a stopped process can also be continued.",
            _CAUSES,
        ),
        CodeEntry(
            "worker-lost",
            "A worker has died, and its slot is not served again yet.",
            "Its executor was removed or killed, often for lack of memory.",
            "The driver submits it again. When it dies again and again, raise `spark.executor.memoryOverhead` above "
            "`memoryBudget`, and look at the executor's log.",
            "docs/architecture.md#the-fleet",
            also=("WallarooWorkersDie", "WallarooSlotNotServed", "not-served"),
        ),
        CodeEntry(
            "worker-unreachable",
            "A worker cannot be called from here.",
            "Its inner port is not reachable from this machine, its process has ended, or the token or TLS differs.",
            "Make the inner port reachable (`innerHost`, `innerPort`, `innerAdvertise`), and check that both sides "
            "use TLS or neither and that the token is this fleet's.",
            "docs/security.md#the-fleets-token",
        ),
        CodeEntry(
            "worker-starting",
            "A worker is being started.",
            "Its task was submitted, and does not serve yet; it may wait for an executor or a free task slot.",
            "Wait. When it lasts, look at the application in Spark's UI.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "worker-stopping",
            "A worker is ending in good order.",
            "The receiver was stopped, the executor is decommissioned, or a newer worker has the slot.",
            "Wait: the slot's next worker takes over, unless the receiver was stopped.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "slot-vacant",
            "Nobody serves a slot.",
            "Its task was not submitted, or the cluster gives it no task slot.",
            "Look at the driver's log, and whether the cluster has a free task slot.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "driver-lost",
            "Workers run, and no driver holds the receiver's lock.",
            "The driver has ended, or does not reach the registry. Nothing is acknowledged meanwhile.",
            "Start the driver again.",
            "docs/architecture.md#the-fleet",
        ),
        CodeEntry(
            "driver-error",
            "The driver's last round has failed.",
            "The driver could not ask its workers, read the commit log, or reach the registry. The message has the "
            "reason.",
            "Mend the reason; the driver tries again by itself.",
            _CAUSES,
            also=("round-failed",),
        ),
        CodeEntry(
            "query-not-started",
            "The receiver has started no query, so workers accept no connector.",
            "`start_query` was not called, or the query was started with `.start()` of Spark alone, so that the "
            "receiver does not know its checkpoint.",
            "Start it with `receiver.start_query(rows.writeStream…, checkpoint=…)`.",
            "docs/architecture.md#acknowledgements-come-from-the-commit-log",
            also=("not-started",),
        ),
        CodeEntry(
            "query-stopped",
            "The query was stopped.",
            "`query.stop()` was called.",
            "Start it again with `receiver.start_query` and the same checkpoint.",
            _CAUSES,
            also=("stopped",),
        ),
        CodeEntry(
            "query-starting",
            "The query is being started.",
            "Spark reads the checkpoint and makes its plan.",
            "",
            _CAUSES,
            also=("starting",),
        ),
        CodeEntry(
            "resend-awaited",
            "A batch waits for rows that connectors have to send again.",
            "A worker died with planned rows, and its connectors are not back yet.",
            "Start the connectors that are missing; after `replayTimeout` the batch fails with the names of the "
            "streams.",
            "docs/protocol.md#rewinding",
        ),
        CodeEntry(
            "sink-slow",
            "All rows of a batch are read, and the query or its sink has worked on them for long.",
            "The sink does not keep up, or a stage of the query is slow or has no free task slot.",
            "Look at the query's sink and at the batch's job in Spark's UI.",
            _CAUSES,
            also=("WallarooBatchTooLong", "WallarooAckTooOld", "WallarooNothingCommitted"),
        ),
        CodeEntry(
            "memory-full",
            "A worker's buffer is full, so it does not read from its connectors.",
            "Rows arrive faster than batches commit them.",
            "Make the batches faster, add workers, or raise `memoryBudget`.",
            "docs/protocol.md#credits",
            also=("WallarooBufferFull", "WallarooStreamsDropped"),
        ),
        CodeEntry(
            "wrong-cookie",
            "Connectors are refused because their cookie is wrong.",
            "The cookie in HELLO is not the receiver's option `cookie`. Line ends at the end of a cookie count "
            "unless it is read as `file:PATH`.",
            "Give the connector the cookie of the receiver.",
            "docs/security.md#the-cookie",
        ),
        CodeEntry(
            "refused",
            "Connectors are refused for another reason.",
            "The worker has answered HELLO, or a later frame, with an ERROR. The message has its reason.",
            "Act on the reason; the page lists all of them. The worker's log has the same line with the peer's "
            "address.",
            "docs/protocol.md#reasons-that-a-connector-may-act-on",
            also=("WallarooConnectorsRefused", "WallarooProtocolViolated"),
        ),
        CodeEntry(
            "session-pending",
            "A connector waits for the answer to its HELLO.",
            "The worker assigns the instance in Redis, and waits for the query's first plan.",
            "",
            "docs/protocol.md#session-states",
        ),
        CodeEntry(
            "no-credits",
            "A connector has used up its credits.",
            "The worker gives credits for as much as the next batches need.",
            "",
            "docs/protocol.md#credits",
        ),
        CodeEntry(
            "trigger-awaited",
            "Rows are held, and the next batch has not begun.",
            "The trigger of the query has not fired yet.",
            "",
            _CAUSES,
        ),
        CodeEntry("batch-running", "A batch is under way.", "Rows are being read and written.", "", _CAUSES),
        CodeEntry(
            "connector-gone",
            "A connector is not connected, and rows of it are held.",
            "It has ended, or its connection is cut. The next batch commits its rows.",
            "",
            _CAUSES,
        ),
        CodeEntry(
            "no-connector",
            "No connector is connected.",
            "None was started, or none reaches the workers.",
            "Start a connector with the addresses that `wallaroo-spark status` shows.",
            "docs/protocol.md#when-to-try-again",
        ),
        CodeEntry("no-data", "Connectors are connected and send nothing.", "They have no data.", "", _CAUSES),
        CodeEntry("flowing", "Rows arrive and are committed.", "All works as it should.", "", _CAUSES),
    ),
)
