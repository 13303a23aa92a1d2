"""``format("wallaroo_pipelines")``: the inputs of an application as a stream of rows.

The reader plans batches in its own process beside the driver, and reads them in executors. Source:
``docs/pipelines/engine.md#the-source`` and ``docs/spark.md``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from wallaroo_spark.engine.source.inputs import BatchPart, InputFiles, UnreadFile
from wallaroo_spark.engine.source.plan import InputOffset, MadeRows, next_offset
from wallaroo_spark.errors import CheckpointError, ConfigurationError, one_line
from wallaroo_spark.runtime.python_tasks import TASK_PROCESS
from wallaroo_spark.runtime.spark_sessions import registered
from wallaroo_spark.storage.locations import Location, for_tasks
from wallaroo_spark.streams.batch_outputs import BatchOutputs, OutputFile
from wallaroo_spark.streams.inbox import InboxReader
from wallaroo_spark.streams.rows import INPUT, INPUT_DDL, batch_of, schema_of

ROWS_A_TASK = 25_000
"""The number of rows from which a batch is read by another task. A task takes some 30 ms to begin, and rows
are divided by key afterwards in any case."""
_COLUMNS = schema_of(INPUT_DDL, optional=" ".join(INPUT.names))
"""INPUT as Spark wants it from a source: every column is nullable."""


@dataclass
class InputRows(InputPartition):
    """The rows that one task reads. Spark sends this to an executor."""

    location: Location
    """The application's folder, as tasks open it."""
    parts: list[BatchPart] = field(default_factory=list)
    """The parts of the batch, in the order in which they are read."""


def divided(location: Location, content: Iterable[BatchPart]) -> list[InputRows]:
    """Divide a batch among tasks; none for an empty batch."""
    tasks: list[InputRows] = []
    room = 0
    for part in content:
        if not tasks or part.rows > room:
            tasks.append(InputRows(location))
            room = ROWS_A_TASK
        tasks[-1].parts.append(part)
        room -= part.rows
    return tasks


def read_rows(task: InputRows) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows of a task."""
    inbox, outputs = InboxReader(task.location), BatchOutputs(task.location)
    for part in task.parts:
        match part:
            case MadeRows():
                rows = {"partition": [*part.partitions], "rank": int(part.rank), "place": 0, "event": part.event}
                origin = {"origin": part.origin, "sequence": part.sequence}
                yield batch_of(_COLUMNS, part.rows, stream=part.stream, **rows, **origin)
            case OutputFile():
                yield from map(_as_source, outputs.open(part))
            case UnreadFile():
                yield from map(_as_source, inbox.read(part.gateway, part.generation, part.file))


def _as_source(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=_COLUMNS)


log = one_line(logging.getLogger("wallaroo_spark.engine.source"))

PATIENCE_SECONDS = 60.0
"""How long planning is repeated while the file system reports errors, before the query ends."""
RETRY_SECONDS = 1.0
"""Shortest time between two such repetitions."""
_LASTING = ("inbox-missing", "inbox-lost", "checkpoint-damaged", "checkpoint-version")
"""Codes of errors that no repetition changes."""


class InputReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of the application at ``location``; at most some ``max_rows`` events a batch."""

    def __init__(self, location: Location, max_rows: int) -> None:
        self._location, self._max_rows = location, max_rows
        self._failing_since: float | None = None
        self._again_at = 0.0

    def __reduce__(self) -> tuple[type[InputReader], tuple[Location, int]]:
        return InputReader, (self._location, self._max_rows)

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
        TASK_PROCESS.prepare()
        return read_rows(partition)


if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

MAX_ROWS = 100_000
"""The default of the option ``maxRows``. A choice."""


class PipelinesDataSource(DataSource):
    """The streaming source of an application.

    The option ``folder`` names the application's folder, ``maxRows`` the number of events after which a batch takes no
    further file. Spark shows options in plans and in its UI, so the class that :func:`register` makes has the location
    with its credentials. Raises :class:`ConfigurationError` for other options.
    """

    values: ClassVar[Mapping[str, Location]] = {}
    """The locations of the registered applications, by the option ``folder``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wallaroo_pipelines"

    def schema(self) -> str:
        """The columns of INPUT."""
        return INPUT_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of all rows."""
        options = {name.lower(): value for name, value in dict(self.options).items()}
        location = self.values.get(options.get("folder", ""))
        if location is None:
            raise ConfigurationError(
                f"format('wallaroo_pipelines'): the folder {options.get('folder')!r} is not registered; start an "
                "Application on it, which registers the folder",
                code="source-misused",
            )
        max_rows = options.get("maxrows", str(MAX_ROWS))
        if not max_rows.isdecimal() or not int(max_rows):
            raise ConfigurationError(
                f"format('wallaroo_pipelines'): maxRows is {max_rows!r}; give a number of rows from 1",
                code="source-misused",
            )
        return InputReader(location, int(max_rows))


def register(spark: SparkSession, location: Location) -> DataStreamReader:
    """Register the source for the application at ``location``; return a reader of Spark that ``load()`` completes.

    ``location`` is resolved with the settings of the session, so that tasks open it as the driver does.
    """
    in_tasks = for_tasks(location, spark)
    with registered(spark, PipelinesDataSource, str(in_tasks), in_tasks) as name:
        return spark.readStream.format(name).option("folder", str(in_tasks))
