"""The messages of committed batches for one gateway. Source: ``docs/pipelines/engine.md#the-steps-of-a-batch``."""

from __future__ import annotations

from typing import Any, NamedTuple

from wallaroo_spark.pipelines.controller.messages.instructions import Instruction
from wallaroo_spark.pipelines.controller.messages.values import CloudEvent
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs.store import BatchOutputs
from wallaroo_spark.streams.rows import OutputKind


class OutboxMessage(NamedTuple):
    """A message for a gateway."""

    instruction: Instruction
    """The instruction."""
    records: tuple[CloudEvent, ...] | None
    """The records of a DeliverRecords; None where they are to be read from the table, and for other instructions."""


class OutboxReader:
    """Reads the messages for gateways in the application's folder; a process without Spark gives no session.

    Only messages of a committed batch may be acted on; the caller follows the commits.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self._outputs = BatchOutputs(folder, spark)

    def messages(self, batch: int, gateway: str) -> list[OutboxMessage]:
        """The messages of a batch for a gateway, in the order of each key; empty if the batch has none.

        Raises :class:`wallaroo_spark.errors.PipelineError` when the batch is no longer kept, and
        :class:`wallaroo_spark.errors.CheckpointError` when a file cannot be read.
        """
        manifest = self._outputs.manifest(batch)
        if manifest is None:
            return []
        return [
            OutboxMessage(decode(instruction), None if records is None else decode(records))
            for file in manifest.of(OutputKind.OUTBOX, gateway)
            for rows in self._outputs.open(file)
            for instruction, records in zip(
                rows.column("instruction").to_pylist(), rows.column("records").to_pylist(), strict=True
            )
        ]
