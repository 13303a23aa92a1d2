"""The batches of a topic, committed or staged, as files beside the checkpoint.

    <checkpoint>/_wallaroo/topics/<topic>/topic.json                        the topic's identity and shape
                                          <batch>/<partition>-<try>.arrow   rows, an Arrow IPC stream
                                          <batch>.json                      the manifest: the files of the batch
                                          kept.json                         the oldest retained batch

It is a :class:`BatchLog` with the topic's identity. A batch without a manifest published nothing.
Source: ``docs/pubsub/protocol.md#on-the-wire``.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.columnar.python_values import with_valid_texts
from wallaroo_spark.errors import PubSubError
from wallaroo_spark.pubsub.messages import MAX_MESSAGE_BYTES
from wallaroo_spark.pubsub.times import Time, parse
from wallaroo_spark.sidecar.batch_log import BatchLog
from wallaroo_spark.sidecar.task_access import write_arrow
from wallaroo_spark.storage.locations import Location

FOLDER = "topics"
MESSAGE_BYTES = 4 << 20
"""Approximate size of a message in bytes; larger Arrow batches are cut into several messages.

A choice. It bounds the memory of one message in a publisher and in a subscriber.
"""
VERSION = 1
"""Version of the files' format."""
MOST_ROW_BYTES = MAX_MESSAGE_BYTES * 3 // 4
"""Longest row. The rest of a message is for its time and the columns' names and types."""
_WAY_OUT = "delete the folder to begin a new history"


@dataclass(frozen=True)
class StagedFile:
    """A file of rows that a task has written."""

    partition: int
    """Partition of the DataFrame."""
    name: str
    """Name of the file in the folder of its batch."""
    rows: int
    """Number of rows."""
    bytes: int
    """Size of the file in bytes."""
    parts: tuple[tuple[Time, int], ...]
    """Time and number of rows of each Arrow batch in the file, in order."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> StagedFile:
        """The file of these values in JSON. Raises as :meth:`TopicManifest.from_json`."""
        parts = tuple((parse(time, "a manifest"), int(rows)) for time, rows in values["parts"])
        return cls(int(values["partition"]), str(values["name"]), int(values["rows"]), int(values["bytes"]), parts)


@dataclass(frozen=True)
class TopicManifest:
    """The files that a batch published."""

    batch: int
    """Id of the batch."""
    files: tuple[StagedFile, ...]
    """Its files, in the order in which they are sent."""

    def of(self, partition: int, partitions: int) -> tuple[StagedFile, ...]:
        """The files of publisher ``partition`` of ``partitions`` publishers."""
        return tuple(file for file in self.files if file.partition % partitions == partition)

    def to_json(self) -> bytes:
        """Encode as the manifest file."""
        values = {"version": VERSION, "batch": self.batch, "files": [vars(file) for file in self.files]}
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TopicManifest:
        """Decode a manifest file. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(data)
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r} is not known")
        return cls(int(values["batch"]), tuple(StagedFile.of(file) for file in values["files"]))


@dataclass(frozen=True)
class TopicIdentity:
    """The identity of a topic. It is constant for as long as its checkpoint and its number of partitions are."""

    identity: str
    """Random name of the topic's history."""
    partitions: int
    """Number of partitions."""
    product: bool
    """Whether times are pairs."""


class TopicLog(BatchLog[TopicManifest]):
    """The folder of one topic beside a checkpoint. ``checkpoint`` is a path or a URI, as the session ``spark`` opens
    it.

    Methods raise :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read or written.
    """

    def __init__(self, checkpoint: Location, topic: str, spark: Any = None) -> None:
        self.checkpoint = checkpoint
        self.topic = topic
        read, not_kept = TopicManifest.from_json, self._no_longer_kept
        super().__init__(checkpoint, FOLDER, topic, read=read, not_kept=not_kept, way_out=_WAY_OUT, spark=spark)

    def identity(self, partitions: int, product: bool) -> str:
        """Return the identity of the topic's history. It is new when there is none, or when the shape has changed."""
        found = self.known()
        if found is not None and (found.partitions, found.product) == (partitions, product):
            return found.identity
        made = TopicIdentity(uuid.uuid4().hex, partitions, product)
        self.folder.write("topic.json", json.dumps(vars(made)).encode())
        return made.identity

    def known(self) -> TopicIdentity | None:
        """The identity from the last start of the topic; None before the first."""
        data = self.folder.read("topic.json")
        return None if data is None else self.parsed("topic.json", lambda: TopicIdentity(**json.loads(data)))

    def stage(
        self, batch: int, partition: int, attempt: int, rows: Iterable[pa.RecordBatch], column: str | None
    ) -> StagedFile | None:
        """Write the rows of one partition of a batch. Returns None, and writes no file, when there are no rows.

        With ``column`` the times are pairs of the batch and the column's values. Raises :class:`PubSubError` for values
        that are not integers from 0. No two calls write the same file.
        """
        pieces = _pieces(batch, rows, column)
        first = next(pieces, None)
        if first is None:
            return None
        name = f"{partition}-{attempt}-{uuid.uuid4().hex[:8]}.arrow"
        parts: list[tuple[Time, int]] = []

        def noted() -> Iterator[pa.RecordBatch]:
            for time, piece in itertools.chain([first], pieces):
                parts.append((time, piece.num_rows))
                yield piece

        with self.new_file(batch, name) as stream:
            count = write_arrow(stream, noted())
            size = stream.tell()
        return StagedFile(partition, name, count, size, tuple(parts))

    def messages(self, batch: int, file: StagedFile) -> Iterator[tuple[Time, pa.RecordBatch]]:
        """Iterate over the rows of a file as they become messages: (time, record batch).

        Raises :class:`PubSubError` when the file is no longer retained.
        """
        with self.reading(batch, file.name) as source, pa.ipc.open_stream(source) as reader:
            for (time, _), rows in zip(file.parts, reader, strict=True):
                yield time, rows

    def _no_longer_kept(self, batch: int) -> PubSubError:
        return PubSubError(
            f"the rows of batch {batch} on topic {self.topic} are no longer retained; start the topic with a larger "
            "retain",
            code="epochs-not-kept",
            topic=self.topic,
            batch=batch,
        )


def _pieces(batch: int, rows: Iterable[pa.RecordBatch], column: str | None) -> Iterator[tuple[Time, pa.RecordBatch]]:
    """Split the rows by time, and each time's rows into pieces of about ``MESSAGE_BYTES``."""
    for found in map(with_valid_texts, rows):
        by_time = [(batch, found)] if column is None else _by_column(batch, found, column)
        for time, same in by_time:
            for piece in _cut(same):
                yield time, _carried(batch, piece)


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if rows.nbytes <= MESSAGE_BYTES or rows.num_rows <= 1:
        if rows.num_rows:
            yield rows
        return
    half = rows.num_rows // 2
    yield from _cut(rows.slice(0, half))
    yield from _cut(rows.slice(half))


def _carried(batch: int, piece: pa.RecordBatch) -> pa.RecordBatch:
    """Return the piece. Raises :class:`PubSubError` when it does not fit into a message with time and schema."""
    if piece.nbytes > MOST_ROW_BYTES:
        raise PubSubError(
            f"a row of batch {batch} takes {piece.nbytes} bytes, and a message carries one of at most "
            f"{MOST_ROW_BYTES}; publish smaller rows",
            code="row-too-long",
            batch=batch,
        )
    return piece


def _by_column(batch: int, rows: pa.RecordBatch, column: str) -> Iterator[tuple[Time, pa.RecordBatch]]:
    values = rows.column(column)
    if not pa.types.is_integer(values.type):
        raise _no_time(column, f"is {values.type}")
    if not rows.num_rows:
        return
    if values.null_count:
        raise _no_time(column, f"has {values.null_count} nulls")
    least = pc.min(values).as_py()
    if least < 0:
        raise _no_time(column, f"has the value {least}")
    order = pc.sort_indices(values)
    rows, numbers = rows.take(order), values.take(order).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in itertools.pairwise(starts):
        yield (batch, int(numbers[start])), rows.slice(start, end - start)


def _no_time(column: str, problem: str) -> PubSubError:
    return PubSubError(
        f"epoch column {column} {problem}; a part of a time is an integer from 0, so cast or fill the column",
        code="epoch-invalid",
        column=column,
    )
