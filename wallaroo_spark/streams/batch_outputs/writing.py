"""Writes the outputs of a task's keys to the files of a batch: the outputs of many keys in few files.

Source: ``docs/pipelines/engine.md#the-steps-of-a-batch``.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs.files import OutputFile
from wallaroo_spark.streams.batch_outputs.store import BatchOutputs
from wallaroo_spark.streams.rows import HISTORY, INPUT, OUTBOX, RECORDS, OutputKind

OUTPUT_FILE_DDL = "file string"
"""The rows of :func:`output_writer`, as Spark's DDL: the text of an OutputFile."""
GROUP_ROWS = 16_384
"""The most rows of a row group. A choice: a reader of few records decodes one row group."""
_WRITERS = 8
"""Threads that write files, because each waits for the disk. A choice."""
_SCHEMAS = {
    OutputKind.RECORDS: RECORDS,
    OutputKind.HISTORY: HISTORY,
    OutputKind.CARRIED: INPUT,
    OutputKind.OUTBOX: OUTBOX,
}
_WITHOUT_FILE = (OutputKind.TIMER, OutputKind.FORGET)
_PARQUET = (OutputKind.RECORDS, OutputKind.HISTORY)


class _Part(NamedTuple):
    """The outputs that share a file."""

    kind: OutputKind
    """Their kind."""
    stream: str
    """The stream of records; else empty."""
    partition: int
    """The partition of records; else 0."""
    target: str
    """The gateway of an outbox; else empty."""


@dataclass
class _Content:
    """The rows of a file until it is written."""

    pieces: list[pa.RecordBatch] = field(default_factory=list)
    """The rows, in their order."""
    first: int | None = None
    """First offset of records."""
    last: int | None = None
    """Last offset of records."""


def write_outputs(folder: Location, batch: int, rows: Iterable[pa.RecordBatch]) -> Iterator[OutputFile]:
    """Write the outputs of one task to files of a batch, and return the files; they are durable when they are returned.

    ``rows`` has the schema OUTPUT. The records of one partition become one Parquet file, the history another one; the
    carried messages become one Arrow file, the messages for each gateway another one. A row of the kind TIMER or FORGET
    has no file: it is returned as an OutputFile of its kind. Raises :class:`PipelineError` when the offsets of a
    partition have a hole, and :class:`wallaroo_spark.errors.CheckpointError` when a file cannot be written. No two
    calls write the same file.
    """
    contents: dict[_Part, _Content] = {}
    facts: list[OutputFile] = []
    for batch_of_rows in rows:
        for row in batch_of_rows.to_pylist():
            kind = OutputKind(row["kind"])
            if kind in _WITHOUT_FILE:
                stream, partition, gauges = row["stream"], row["partition"], (row["body"] or b"").decode()
                facts.append(OutputFile(batch, kind, stream, partition, first=row["first"], gauges=gauges))
            else:
                _add(contents, kind, row)
    outputs, token = BatchOutputs(folder), uuid.uuid4().hex[:12]
    stems = (f"{part.kind}-{token}-{number}" for number, part in enumerate(contents))
    with ThreadPoolExecutor(max(1, min(_WRITERS, len(contents)))) as pool:
        yield from pool.map(lambda *one: _write(outputs, batch, *one), stems, contents, contents.values())
    yield from facts


def output_writer(folder: Location, batch: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow(…, OUTPUT_FILE_DDL)`` that calls :func:`write_outputs`.

    ``folder`` is the application's folder as tasks open it. Each row is the text of an :class:`OutputFile`.
    """

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        texts = [file.to_json() for file in write_outputs(folder, batch, rows)]
        yield pa.RecordBatch.from_pydict({"file": pa.array(texts, pa.string())})

    return write


def _add(contents: dict[_Part, _Content], kind: OutputKind, row: dict[str, Any]) -> None:
    of_partition = kind is OutputKind.RECORDS
    part = _Part(
        kind,
        row["stream"] if of_partition else "",
        row["partition"] if of_partition else 0,
        row["target"] if kind is OutputKind.OUTBOX else "",
    )
    content = contents.setdefault(part, _Content())
    if of_partition:
        if content.last is not None and row["first"] != content.last + 1:
            raise PipelineError(
                f"{part.stream}/{part.partition}: records from offset {row['first']} follow offset {content.last} in "
                "one batch, but offsets have no holes; report this as a defect",
                code="offsets-not-consecutive",
                stream=part.stream,
                partition=part.partition,
            )
        content.first = row["first"] if content.first is None else content.first
        content.last = row["last"]
    with pa.ipc.open_stream(row["body"]) as reader:
        content.pieces += reader


def _write(outputs: BatchOutputs, batch: int, stem: str, part: _Part, content: _Content) -> OutputFile:
    parquet = part.kind in _PARQUET
    name = f"{stem}.{'parquet' if parquet else 'arrow'}"
    table = pa.Table.from_batches(content.pieces, _SCHEMAS[part.kind]).combine_chunks()
    with outputs.log.new_file(batch, name) as stream:
        if parquet:
            write_parquet(stream, table)
        else:
            with pa.ipc.new_stream(stream, table.schema) as writer:
                writer.write_table(table)
        size = stream.tell()
    return OutputFile(
        batch,
        part.kind,
        part.stream,
        part.partition,
        part.target,
        name,
        table.num_rows,
        size,
        content.first,
        content.last,
    )


def write_parquet(stream: Any, table: pa.Table) -> None:
    """Write rows as a Parquet file to an open stream, in row groups of at most ``GROUP_ROWS`` rows."""
    with contextlib.closing(pq.ParquetWriter(stream, table.schema, compression="zstd")) as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
