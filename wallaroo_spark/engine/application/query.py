"""The query of an application: its session, its settings, and its start.

Source: ``docs/pipelines/running.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wallaroo_spark.engine.application.settings import ApplicationSettings
from wallaroo_spark.engine.operator.processor import Rehearsal, run_keys
from wallaroo_spark.engine.set_aside import NOTHING, SetAside
from wallaroo_spark.engine.source import register
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.runtime import spark_checks
from wallaroo_spark.runtime.python_tasks import collected
from wallaroo_spark.runtime.spark_sessions import quick_on_local_disk
from wallaroo_spark.sidecar.syncing import sync_file_system
from wallaroo_spark.storage.locations import Location, for_tasks
from wallaroo_spark.streams.batch_outputs import OUTPUT_FILE_DDL, BatchOutputs, OutputFile, manifest_of, output_writer
from wallaroo_spark.streams.places import checkpoint_of

PARTITIONS = "spark.sql.shuffle.partitions"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    STATE_STORE: ROCKSDB,
    # Without it every batch uploads a whole snapshot of each partition's state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The operator computes with the times of batches in UTC.
    "spark.sql.session.timeZone": "UTC",
}
"""The settings of the query beside the number of its partitions."""
MOST_DEFAULT_PARTITIONS = 64
"""The most partitions of the state unless the user gives a number.

A choice: each is a task and a RocksDB of every batch, also of one with a single event.
"""


def state_partitions(wanted: int | None, recorded: int | None, task_slots: int) -> int:
    """The number of partitions of the state. Pure.

    ``wanted`` is the setting, ``recorded`` the number in the checkpoint (None before the first batch), ``task_slots``
    the number of tasks that a batch can run at once. Raises :class:`ConfigurationError` when the checkpoint has another
    number than the setting.
    """
    if recorded is None:
        return wanted or max(1, min(task_slots, MOST_DEFAULT_PARTITIONS))
    if wanted is not None and wanted != recorded:
        raise ConfigurationError(
            f"state_partitions is {wanted}, and the state in the application's checkpoint is divided into {recorded}, "
            f"which cannot be changed; leave the setting out, or give {recorded}",
            code="state-partitions-fixed",
            recorded=recorded,
        )
    return recorded


def query_session(spark: Any, partitions: int) -> Any:
    """A session with the settings, temporary views and functions of ``spark`` and with those that the query needs.

    It shares the SparkContext, so stopping ``spark`` ends it too.
    """
    from pyspark.sql import SparkSession

    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in {**SETTINGS, PARTITIONS: str(partitions)}.items():
        session.conf.set(name, value)
    return session


def tasks_beside(spark: Any, gateways: int) -> int:
    """The number of tasks that a batch can run at once beside the gateways; 1 when they cannot be counted."""
    context = spark_checks.classic_context(spark)
    return 1 if context is None else max(1, spark_checks.count_task_slots(context) - gateways)


def start_query(
    session: Any,
    settings: ApplicationSettings,
    local_checkpoint: str | None,
    require: Callable[[], None],
    aside: SetAside = NOTHING,
) -> Any:
    """Start the query on its checkpoint, in a session of :func:`query_session`; return Spark's query.

    ``local_checkpoint`` is the checkpoint's path on a disk of this machine; None on other file systems. ``require``
    raises an error when the folder is not that of this driver any more. ``aside`` is what the query goes on without.
    """
    in_tasks = for_tasks(settings.folder, session)
    events = register(session, in_tasks).option("maxRows", settings.max_rows).load()
    synced = local_checkpoint if settings.fsync else None
    writer = (
        run_keys(events, in_tasks, aside)
        .writeStream.queryName(f"wallaroo application {settings.known_as}")
        .outputMode("append")
        .foreachBatch(sealing(BatchOutputs(settings.folder, session), in_tasks, require, synced))
        .option("checkpointLocation", checkpoint_of(settings.folder))
    )
    with quick_on_local_disk(session, local_checkpoint):
        return writer.start()


def rehearsal(spark: Any) -> Any:
    """The writer of a stateful query with the settings and the steps of an application's, which writes nothing."""
    rows = query_session(spark, 1).readStream.format("rate").load().groupBy("value")
    changed = rows.transformWithStateInPandas(Rehearsal(), "value bigint", "Append", "None")
    passing = "value bigint"
    return changed.writeStream.foreachBatch(lambda batch, _: batch.mapInArrow(lambda parts: parts, passing).collect())


def sealing(
    outputs: BatchOutputs, in_tasks: Location, require: Callable[[], None] = lambda: None, synced: str | None = None
) -> Callable[[Any, int], None]:
    """The function for ``foreachBatch``: tasks write the outputs of their keys to files, then the manifest is written.

    The DataFrame is computed once, because each computation changes the state. At the end the file system of the folder
    ``synced`` is synced: the batch's offsets, its state and its outputs are on the disk before Spark writes its commit.
    ``require`` raises an error when the folder has become another driver's.
    """

    def seal(rows: Any, batch: int) -> None:
        written = collected(rows.mapInArrow(output_writer(in_tasks, batch), OUTPUT_FILE_DDL))
        require()
        before = outputs.manifest(batch - 1) if batch > 0 else None
        outputs.seal(manifest_of(batch, (OutputFile.from_json(row.file) for row in written), before))
        if synced:
            sync_file_system(synced)

    return seal
