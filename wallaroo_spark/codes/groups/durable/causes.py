"""Codes of the sentence on what an application of durable streams waits for."""

from __future__ import annotations

from wallaroo_spark.codes.entry import CodeEntry, CodeGroup

_CAUSES = "docs/pipelines/see.md#causes"

APPLICATION_CAUSES = CodeGroup(
    "What an application of durable streams waits for",
    "Causes in `wallaroo-spark status --app`, on the page of an application, and in `Application.status()`, which also "
    "has `query-failed`, `query-starting`, `query-stopped`, `checkpoint-unwritable` and `registry-away` of receivers.",
    (
        CodeEntry(
            "application-not-running",
            "No driver runs the application.",
            "The program that runs it has ended or was not started, or this is another folder, registry or name.",
            "Start it with `wallaroo-spark run`; it continues where it ended. Or check the folder and the name.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "gateway-not-served",
            "A gateway does not serve.",
            "It starts, its executor was lost, or its job ends with an error again and again.",
            "Look at its last error in `wallaroo-spark status --app`, and whether the cluster has a free task slot.",
            _CAUSES,
            also=("WallarooGatewayGone",),
        ),
        CodeEntry(
            "query-stuck",
            "A batch runs for more than a minute, or a call waits for its commit for more than half a minute.",
            "A function of a stage hangs, the file system is slow, or the cluster has no free task slot.",
            "Look at the batch's job in Spark's UI, and at the logs of the executors.",
            _CAUSES,
            also=("WallarooApplicationStuck",),
        ),
        CodeEntry(
            "stage-without-member",
            "Deliveries of a stage wait, and a partition has had no member of it for more than a minute.",
            "No program works on the stage, its token does not permit it, or it has joined some partitions only.",
            "Start a program that works on the stage: `wallaroo-spark stage PIPELINE STAGE --exec COMMAND`.",
            "docs/pipelines/clients.md",
            also=("WallarooStageWithoutMember",),
        ),
        CodeEntry(
            "application-error",
            "The work after a commit has failed, and is repeated.",
            "Records cannot be moved into the tables, or old files cannot be deleted. The sentence has the reason.",
            "Mend the reason; the work is repeated after the next commit, or within a second.",
            "docs/pipelines/engine.md#the-application",
        ),
        CodeEntry(
            "application-flowing",
            "Instances are active, records wait, or calls wait for their commit.",
            "The application works.",
            "",
            _CAUSES,
            also=("WallarooPipelineLags", "WallarooGroupLags"),
        ),
        CodeEntry(
            "application-idle",
            "Everything that has come is done.",
            "No client publishes, and no instance is active.",
            "",
            _CAUSES,
        ),
    ),
)
