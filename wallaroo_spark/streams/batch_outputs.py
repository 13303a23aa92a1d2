"""The outputs of an application's batches: files that tasks write, and the manifest that names them.

The files are written by tasks and the manifest by the driver; gateways, the source and the mover read them. Source:
``docs/pipelines/engine.md#files`` and ``docs/pipelines/engine.md#the-steps-of-a-batch``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wallaroo_spark.errors import PipelineError
from wallaroo_spark.pipelines.controller.messages.instructions import Instruction
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.runtime.python_tasks import TASK_PROCESS
from wallaroo_spark.sidecar.batch_log import BatchLog
from wallaroo_spark.sidecar.task_access import write_arrow
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.places import BATCHES
from wallaroo_spark.streams.rows import HISTORY, INPUT, OUTBOX, RECORDS, OutputKind

FORMAT = 1
"""The version of the manifest's format."""


@dataclass(frozen=True)
class OutputFile:
    """A file that a task of a batch has written; of the kinds TIMER and FORGET a fact on one key, without a file."""

    batch: int
    """The batch that it belongs to."""
    kind: OutputKind
    """The kind of its rows."""
    stream: str = ""
    """Stream of the records, the timer or the forgotten records; empty for the other kinds."""
    partition: int = 0
    """Partition of the records, the timer or the forgotten records."""
    target: str = ""
    """Name of the gateway, for an outbox."""
    name: str = ""
    """Name of the file in the folder of its batch; empty without a file."""
    rows: int = 0
    """Number of rows."""
    bytes: int = 0
    """Size of the file in bytes."""
    first: int | None = None
    """First offset of the records, or the first one that is not forgotten; of a timer its time in milliseconds, None
    when the key needs none."""
    last: int | None = None
    """Last offset of the records, inclusive."""
    gauges: str = ""
    """The gauges of a timer's key after the batch, as JSON; empty for the other kinds."""

    @property
    def key(self) -> PartitionKey:
        """The key of records, of a timer, or of forgotten records."""
        return PartitionKey(self.stream, self.partition)

    def to_json(self) -> str:
        """Encode as text: a task returns it to the driver."""
        return json.dumps(self._values())

    @classmethod
    def from_json(cls, text: str) -> OutputFile:
        """Decode the text of :meth:`to_json`."""
        return cls._read(json.loads(text))

    def _values(self) -> dict[str, Any]:
        # A manifest has no gauges at its files, and readers of earlier releases do not know the name.
        return {name: value for name, value in vars(self).items() if name != "gauges" or value}

    @classmethod
    def _read(cls, values: dict[str, Any]) -> OutputFile:
        return cls(**{**values, "kind": OutputKind(values["kind"])})


@dataclass(frozen=True)
class Manifest:
    """The outputs of a batch. It counts once Spark has committed the batch."""

    batch: int
    """Id of the batch."""
    files: tuple[OutputFile, ...] = ()
    """Its files, and an entry of the kind FORGET for each key whose records are forgotten."""
    timers: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """All armed timers after the batch: the text of a PartitionKey → time in milliseconds."""
    gauges: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))
    """The gauges of the keys that had a turn in the batch: the text of a PartitionKey → their values."""

    def of(self, kind: OutputKind, target: str | None = None) -> tuple[OutputFile, ...]:
        """The files of one kind, and of one gateway if ``target`` is given."""
        return tuple(file for file in self.files if file.kind == kind and target in (None, file.target))

    def to_json(self) -> bytes:
        """Encode as the manifest file."""
        values = {
            **vars(self),
            "files": [file._values() for file in self.files],
            "timers": dict(self.timers),
            "gauges": dict(self.gauges),
        }
        return json.dumps({"version": FORMAT, **values}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Decode a manifest file. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(data)
        if values["version"] != FORMAT:
            raise ValueError(f"version {values['version']!r} is not known")
        files = tuple(OutputFile._read(file) for file in values["files"])
        timers = {str(key): int(at) for key, at in values["timers"].items()}
        return cls(int(values["batch"]), files, timers, values.get("gauges", {}))


def manifest_of(batch: int, outputs: Iterable[OutputFile], before: Manifest | None) -> Manifest:
    """The manifest of a batch from all that its tasks have returned; ``before`` is the manifest of the batch before.

    A timer in ``outputs`` replaces the one that its key has in ``before``.
    """
    timers = dict(before.timers) if before is not None else {}
    files, gauges = [], {}
    for output in outputs:
        if output.gauges:
            gauges[str(output.key)] = json.loads(output.gauges)
        if output.kind is not OutputKind.TIMER:
            files.append(output)
        elif output.first is None:
            timers.pop(str(output.key), None)
        else:
            timers[str(output.key)] = output.first
    order = sorted(files, key=lambda file: (file.kind, file.stream, file.partition, file.target, file.first or 0))
    return Manifest(batch, tuple(order), timers, gauges)


_WAY_OUT = "restore the application's folder, because the state of its streams is no longer complete"


class BatchOutputs(BatchLog[Manifest]):
    """The outputs of the batches of the application in ``folder``, as the session ``spark`` opens it.

    A process without a Spark session gives none, and a location as :func:`for_tasks` makes it. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written, and :class:`PipelineError` for
    a batch that is no longer kept.
    """

    def __init__(self, folder: Location, spark: Any = None) -> None:
        read = Manifest.from_json
        super().__init__(folder, BATCHES, read=read, not_kept=_no_longer_kept, way_out=_WAY_OUT, spark=spark)

    def open(self, file: OutputFile) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of an Arrow file: carried messages (INPUT), or an outbox (OUTBOX)."""
        with self.reading(file.batch, file.name) as stream, pa.ipc.open_stream(stream) as reader:
            yield from reader

    def messages(self, batch: int, gateway: str) -> list[tuple[Instruction, tuple[CloudEvent, ...] | None]]:
        """The messages of a committed batch for a gateway, in the order of each key; empty if the batch has none.

        Each is an instruction, and the records of a DeliverRecords; None where they are to be read from the table, and
        for other instructions.
        """
        manifest = self.manifest(batch)
        return [
            (decode(instruction), None if records is None else decode(records))
            for file in (manifest.of(OutputKind.OUTBOX, gateway) if manifest is not None else ())
            for rows in self.open(file)
            for instruction, records in zip(*(rows.column(name).to_pylist() for name in OUTBOX.names), strict=True)
        ]


def _no_longer_kept(batch: int) -> PipelineError:
    return PipelineError(
        f"the outputs of batch {batch} are no longer kept, because they were moved into the tables; read the tables, "
        "and join the group or stage again for its deliveries",
        code="batch-not-kept",
        batch=batch,
    )


OUTPUT_FILE_DDL = "file string"
"""The rows of :func:`output_writer`, as Spark's DDL: the text of an OutputFile."""
GROUP_ROWS = 16_384
"""The most rows of a row group. A reader of few records decodes one row group."""
GROUP_BYTES = 16 << 20
"""The most bytes of a row group, about. Records may have megabytes."""
_WRITERS = 8
"""Threads that write files, because each waits for the disk."""
_PLACE = ("stream", "partition")
_FILES: dict[OutputKind, tuple[pa.Schema, str, Sequence[str]]] = {
    OutputKind.RECORDS: (RECORDS, "parquet", _PLACE),
    OutputKind.HISTORY: (HISTORY, "parquet", ()),
    OutputKind.CARRIED: (INPUT, "arrow", ()),
    OutputKind.OUTBOX: (OUTBOX, "arrow", ("target",)),
}
"""The kinds that have files: their schema, the ending of their names, and the columns whose values have a file each."""
_Rows = list[dict[str, Any]]


def write_outputs(folder: Location, batch: int, rows: Iterable[pa.RecordBatch]) -> Iterator[OutputFile]:
    """Write the outputs of one task to files of a batch, and return the files; they are durable when they are returned.

    ``rows`` has the schema OUTPUT. The records of one partition become one Parquet file, the history another one; the
    carried messages become one Arrow file, the messages for each gateway another one. A row of the kind TIMER or FORGET
    has no file: it is returned as an OutputFile of its kind. Raises :class:`PipelineError` when the offsets of a
    partition have a hole, and :class:`wallaroo_spark.errors.CheckpointError` when a file cannot be written. No two
    calls write the same file.
    """
    files: dict[OutputFile, _Rows] = {}
    facts: list[OutputFile] = []
    for row in itertools.chain.from_iterable(some.to_pylist() for some in rows):
        kind = OutputKind(row["kind"])
        if kind in _FILES:
            place = {column: row[column] for column in _FILES[kind][2]}
            files.setdefault(OutputFile(batch, kind, **place), []).append(row)
        else:
            gauges = (row["body"] or b"").decode()
            facts.append(OutputFile(batch, kind, row["stream"], row["partition"], first=row["first"], gauges=gauges))
    outputs, token = BatchOutputs(folder), uuid.uuid4().hex[:12]
    stems = (f"{one.kind}-{token}-{number}" for number, one in enumerate(files))
    with ThreadPoolExecutor(max(1, min(_WRITERS, len(files)))) as pool:
        yield from pool.map(lambda *one: _write(outputs, *one), stems, files, files.values())
    yield from facts


def output_writer(folder: Location, batch: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow(…, OUTPUT_FILE_DDL)`` that calls :func:`write_outputs`.

    ``folder`` is the application's folder as tasks open it. Each row is the text of an :class:`OutputFile`.
    """

    def write(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        TASK_PROCESS.prepare()
        texts = [file.to_json() for file in write_outputs(folder, batch, rows)]
        yield pa.RecordBatch.from_pydict({"file": pa.array(texts, pa.string())})

    return write


def _write(outputs: BatchOutputs, stem: str, file: OutputFile, rows: _Rows) -> OutputFile:
    """Write the rows of OUTPUT that belong to one file."""
    schema, ending, _ = _FILES[file.kind]
    for before, row in itertools.pairwise(rows):
        if file.kind is OutputKind.RECORDS and row["first"] != before["last"] + 1:
            raise PipelineError(
                f"{file.key}: records from offset {row['first']} follow offset {before['last']} in one batch, but "
                "offsets have no holes; report this as a defect",
                code="offsets-not-consecutive",
                stream=file.stream,
                partition=file.partition,
            )
    pieces = [piece for row in rows for piece in pa.ipc.open_stream(row["body"])]
    table = pa.Table.from_batches(pieces, schema).combine_chunks()
    name = f"{stem}.{ending}"
    with outputs.new_file(file.batch, name) as stream:
        if ending == "parquet":
            write_parquet(stream, table)
        else:
            write_arrow(stream, table.to_batches(), schema=schema)
        size = stream.tell()
    first, last = rows[0]["first"], rows[-1]["last"]
    return replace(file, name=name, rows=table.num_rows, bytes=size, first=first, last=last)


def write_parquet(stream: Any, table: pa.Table) -> None:
    """Write rows as a Parquet file to an open stream, in row groups of at most ``GROUP_ROWS`` and ``GROUP_BYTES``."""
    rows = min(GROUP_ROWS, max(1, GROUP_BYTES * table.num_rows // max(1, table.nbytes)))
    with contextlib.closing(pq.ParquetWriter(stream, table.schema, compression="zstd")) as writer:
        writer.write_table(table, row_group_size=rows)
