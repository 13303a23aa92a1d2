"""Reads the rows of a planned batch in an executor. Source: ``docs/pipelines/engine.md#the-source``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from wallaroo_spark.engine.source.inputs import BatchContent, UnreadFile
from wallaroo_spark.engine.source.plan import MadeRows
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs.files import OutputFile
from wallaroo_spark.streams.batch_outputs.store import BatchOutputs
from wallaroo_spark.streams.inbox import InboxReader
from wallaroo_spark.streams.rows import INPUT

ROWS_A_TASK = 25_000
"""The number of rows from which a batch is read by another task. A choice: a task takes some 30 ms to begin, and rows
are divided by key afterwards in any case."""
_COLUMNS = pa.schema([pa.field(column.name, column.type) for column in INPUT])
"""INPUT as Spark wants it from a source: every column is nullable."""


@dataclass
class InputRows(InputPartition):
    """The rows that one task reads. Spark sends this to an executor."""

    location: Location
    """The application's folder, as tasks open it."""
    files: tuple[UnreadFile, ...] = ()
    """Files of gateways."""
    carried: tuple[OutputFile, ...] = ()
    """Files of carried messages."""
    made: tuple[MadeRows, ...] = ()
    """Rows that stand in no file."""


def divided(location: Location, content: BatchContent) -> list[InputRows]:
    """Divide a batch among tasks; none for an empty batch."""
    tasks: list[InputRows] = []
    room = 0
    for rows, part in _parts(location, content):
        if not tasks or rows > room:
            tasks.append(InputRows(location))
            room = ROWS_A_TASK
        task = tasks[-1]
        task.files, task.carried, task.made = (
            task.files + part.files,
            task.carried + part.carried,
            task.made + part.made,
        )
        room -= rows
    return tasks


def read_rows(task: InputRows) -> Iterator[pa.RecordBatch]:
    """Iterate over the rows of a task."""
    inbox, outputs = InboxReader(task.location), BatchOutputs(task.location)
    for one in task.made:
        yield _as_batch(one)
    for file in task.carried:
        for batch in outputs.open(file):
            yield _as_source(batch)
    for unread in task.files:
        for batch in inbox.read(unread.gateway, unread.generation, unread.file):
            yield _as_source(batch)


def _parts(location: Location, content: BatchContent) -> Iterator[tuple[int, InputRows]]:
    for made in content.made:
        yield len(made.partitions), InputRows(location, made=(made,))
    for carried in content.carried:
        yield carried.rows, InputRows(location, carried=(carried,))
    for unread in content.files:
        yield unread.file.rows, InputRows(location, files=(unread,))


def _as_batch(made: MadeRows) -> pa.RecordBatch:
    rows = len(made.partitions)
    columns = [
        pa.repeat(pa.scalar(made.stream, pa.string()), rows),
        pa.array(made.partitions, pa.int32()),
        pa.repeat(pa.scalar(int(made.rank), pa.int32()), rows),
        pa.repeat(pa.scalar(made.origin, pa.string()), rows),
        pa.repeat(pa.scalar(made.sequence, pa.int64()), rows),
        pa.repeat(pa.scalar(0, pa.int32()), rows),
        pa.repeat(pa.scalar(made.event, pa.binary()), rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_COLUMNS)


def _as_source(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=_COLUMNS)
