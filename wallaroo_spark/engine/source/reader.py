"""The stream reader: it plans batches in its own process beside the driver, and reads them in executors.

Source: ``docs/pipelines/engine.md#the-source`` and ``docs/spark.md``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from wallaroo_spark.engine.source.inputs import InputFiles
from wallaroo_spark.engine.source.offsets import InputOffset
from wallaroo_spark.engine.source.plan import next_offset
from wallaroo_spark.engine.source.reading import InputRows, divided, read_rows
from wallaroo_spark.errors import CheckpointError, one_line
from wallaroo_spark.storage.locations import Location

log = one_line(logging.getLogger("wallaroo_spark.engine.source"))

PATIENCE_SECONDS = 60.0
"""How long planning is repeated while the file system reports errors, before the query ends. A choice."""
RETRY_SECONDS = 1.0
"""Shortest time between two such repetitions. A choice."""
_LASTING = ("inbox-missing", "checkpoint-damaged", "checkpoint-version")
"""Codes of errors that no repetition changes."""


class InputReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of the application at ``location``; at most some ``max_rows`` events a batch."""

    def __init__(self, location: Location, max_rows: int) -> None:
        self._location, self._max_rows = location, max_rows
        self._failing_since: float | None = None
        self._again_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self._location, "max_rows": self._max_rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        InputReader.__init__(self, state["location"], state["max_rows"])

    @cached_property
    def _files(self) -> InputFiles:
        return InputFiles(self._location)

    def initialOffset(self) -> dict[str, Any]:
        """Nothing is read yet."""
        return InputOffset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit of Spark's: the option ``maxRows`` bounds a batch."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to prepare: such a run ends once nothing is left to do; timers of a later time stay armed."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; ``start`` itself when there is nothing to read.

        An error of the file system that may pass is logged, for a minute at most; then it is raised.
        """
        now = time.monotonic()
        if self._failing_since is not None and now < self._again_at:
            return start
        before = InputOffset.from_json(start)
        try:
            end = next_offset(before, self._files.look(before), self._max_rows)
        except CheckpointError as error:
            self._failing_since = now if self._failing_since is None else self._failing_since
            if error.code in _LASTING or now - self._failing_since >= PATIENCE_SECONDS:
                raise
            self._again_at = now + RETRY_SECONDS
            log.warning("batches are planned once the files of the application can be read: %s", error)
            return start
        self._failing_since = None
        return start if end is before else end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of a batch, a task for each. The offsets alone decide what they are."""
        content = self._files.content(InputOffset.from_json(start), InputOffset.from_json(end))
        return divided(self._location, content)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part."""
        assert isinstance(partition, InputRows)
        return read_rows(partition)
