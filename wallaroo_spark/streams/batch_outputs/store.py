"""The folder of an application's batches: written by tasks and the driver, read by gateways, the source and the mover.

Source: ``docs/pipelines/engine.md#the-steps-of-a-batch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.sidecar.batch_log import BatchLog
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs.files import Manifest, OutputFile
from wallaroo_spark.streams.places import BATCHES

_WAY_OUT = "restore the application's folder, because the state of its streams is no longer complete"


class BatchOutputs:
    """The outputs of the batches of the application in ``folder``, as the session ``spark`` opens it.

    A process without a Spark session gives none, and a location as :func:`for_tasks` makes it. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written, and :class:`PipelineError` for
    a batch that is no longer kept.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        self.log = BatchLog(folder, BATCHES, not_kept=_not_kept, way_out=_WAY_OUT, spark=spark)

    def __repr__(self) -> str:
        return f"BatchOutputs({self.log.folder.identity!r})"

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest of a batch; it replaces an earlier one."""
        self.log.seal(manifest.batch, manifest.to_json())

    def manifest(self, batch: int) -> Manifest | None:
        """The manifest of a batch; None if the batch has none."""
        return self.log.manifest(batch, Manifest.from_json)

    def sealed(self) -> list[int]:
        """The batches that have a manifest, in their order; the newest of them may be not committed."""
        return self.log.sealed()

    def open(self, file: OutputFile) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of an Arrow file: carried messages (INPUT), or an outbox (OUTBOX)."""
        with self.log.reading(file.batch, file.name) as stream, pa.ipc.open_stream(stream) as reader:
            yield from reader

    def delete_drafts(self) -> None:
        """Delete the drafts of manifests that a driver has left. For the one driver, before its first batch."""
        self.log.folder.delete_drafts()

    def kept_from(self) -> int:
        """The oldest kept batch."""
        return self.log.kept_from()

    def keep_from(self, batch: int) -> None:
        """Delete the files of the batches before ``batch``."""
        self.log.keep_from(batch)


def _not_kept(batch: int) -> PipelineError:
    return PipelineError(
        f"the outputs of batch {batch} are no longer kept, because they were moved into the tables; read the tables, "
        "and join the group or stage again for its deliveries",
        code="batch-not-kept",
        batch=batch,
    )
