"""The Spark session of an application's query: a copy of the user's, with the settings that the query needs.

Nothing of it is seen in the user's session. Source: ``docs/pipelines/engine.md#the-application``.
"""

from __future__ import annotations

from typing import Any

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.slots import spark_checks

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
