"""The query of an application: events by key to the controllers, and the outputs of a batch to its files.

Source: ``docs/pipelines/engine.md#the-steps-of-a-batch``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wallaroo_spark.engine.operator.processor import run_keys
from wallaroo_spark.engine.source import register
from wallaroo_spark.receiver.file_manager import quick_on_local_disk
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs.files import OutputFile, manifest_of
from wallaroo_spark.streams.batch_outputs.store import BatchOutputs
from wallaroo_spark.streams.batch_outputs.writing import OUTPUT_FILE_DDL, output_writer
from wallaroo_spark.streams.places import checkpoint_of


@dataclass(frozen=True)
class QueryPlan:
    """The values with which the query of an application is built."""

    name: str
    """Name of the application; the query has it too."""
    folder: str
    """The folder as the driver opens it."""
    in_tasks: Location
    """The folder as tasks open it."""
    max_rows: int
    """The most events of one batch."""
    local_checkpoint: str | None
    """The checkpoint's path on a disk of this machine; None on other file systems."""


def start_query(session: Any, plan: QueryPlan) -> Any:
    """Start the query on its checkpoint, in a session of :func:`query_session`; return Spark's query."""
    events = register(session, plan.in_tasks).option("maxRows", plan.max_rows).load()
    outputs = run_keys(events, plan.in_tasks)
    writer = (
        outputs.writeStream.queryName(f"wallaroo application {plan.name}")
        .outputMode("append")
        .foreachBatch(sealing(BatchOutputs(plan.folder, session), plan.in_tasks))
        .option("checkpointLocation", checkpoint_of(plan.folder))
    )
    with quick_on_local_disk(session, plan.local_checkpoint):
        return writer.start()


def sealing(outputs: BatchOutputs, in_tasks: Location) -> Callable[[Any, int], None]:
    """The function for ``foreachBatch``: tasks write the outputs of their keys to files, then the manifest is written.

    The DataFrame is computed once, because each computation changes the state.
    """

    def seal(rows: Any, batch: int) -> None:
        written = rows.mapInArrow(output_writer(in_tasks, batch), OUTPUT_FILE_DDL).collect()
        before = outputs.manifest(batch - 1) if batch > 0 else None
        outputs.seal(manifest_of(batch, (OutputFile.from_json(row.file) for row in written), before))

    return seal
