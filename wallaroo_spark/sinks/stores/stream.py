"""The sink ``stream``: rows become events of a durable stream, by way of the inbox of its application.

    <application>/_wallaroo/inbox/sink-<name>/owner.json                             the query that has the name
                                              staged/<batch>.<partition>.<attempt>.<n>.arrow   written by tasks
                                              <generation>/<sequence>-<rows>-<bytes>.arrow     of a committed batch
                                              <generation>-00000000.claim            the batch can be read

A batch is a generation of an inbox. Tasks write its files in the form in which the application reads them. A commit
gives them their names, and then writes the claim of the generation: that one file makes the whole batch readable.
Source: ``docs/decisions/rows-become-events.md``.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import fs

from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import CheckpointError, SinkError
from wallaroo_spark.pipelines.controller.messages.events import RecordsPublished
from wallaroo_spark.pipelines.controller.messages.values import Durability, PartitionKey, ReplyTo
from wallaroo_spark.pipelines.controller.stored.encoding import encode
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent, partition_of
from wallaroo_spark.pipelines.schema.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sidecar import durable
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.sidecar.task_access import write_arrow
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import StreamSettings
from wallaroo_spark.sinks.stores.event_rows import RowEvent, RowReader
from wallaroo_spark.sinks.stores.staged_rows import StagedRows, explained, transaction_of
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed
from wallaroo_spark.storage.locations import Location, for_tasks, session
from wallaroo_spark.streams.inbox import (
    DRIVER,
    SINK,
    InboxFile,
    InboxReader,
    claim_name,
    claimed,
    generation_folders,
    generation_name,
    origin_of,
    positions_in,
    received_rows,
)
from wallaroo_spark.streams.places import INBOX, checkpoint_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OWNER, STAGED = "owner.json", "staged"
FILE_EVENTS = 20_000
"""The most events of a file. A choice: a batch of the application reads whole files."""
FILE_BYTES = 8 << 20
"""Bytes of events from which a file takes no more. A choice, for the same reason; a task has them in memory."""
ROW_EVENTS, ROW_BYTES = 2_000, 1 << 20
"""The most events, and their bytes, of one row of a file. A choice: the application sets aside whole rows."""
_LOOK_SECONDS = 0.2
"""Pause between two looks at what the application has read. A choice."""


@function_takes_settings(StreamSettings)
def stream(settings: StreamSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a durable stream, as :class:`StreamSink`."""
    sink = StreamSink(**vars(settings))
    return transactional(sink, checkpoint=settings.checkpoint, shape=sink.when_there_is_room)


class StreamSink:
    """Writes each row as an event of one stream. The application need not run meanwhile.

    Raises :class:`ConfigurationError` for settings that cannot work; methods raise :class:`SinkError` and
    :class:`CheckpointError`.
    """

    @takes_settings(StreamSettings)
    def __init__(self, settings: StreamSettings) -> None:
        self.name = settings.known_as
        self._application: Location = settings.application
        self._settings = settings
        self._stage = StagedRows(settings.checkpoint, self.name)
        self._reader = RowReader(settings)
        self.in_tasks = (settings.checkpoint, settings.application)

    def __repr__(self) -> str:
        return f"StreamSink({str(self._application)!r}, {self._settings.stream!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_own", "_staged", "in_tasks")}
        return {**kept, "_application": for_tasks(self._application, session())}

    def when_there_is_room(self, rows: DataFrame) -> DataFrame:
        """Return the rows of a batch once the application has read enough of the batches before.

        Raises :class:`SinkError` when it does not within the setting ``timeout``.
        """
        until = time.monotonic() + self._settings.timeout
        files = CheckpointFiles(checkpoint_of(str(self._application)), session())
        inbox = InboxReader(self._application, session())
        while (unread := self._unread_bytes(files, inbox)) > self._settings.max_unread:
            if time.monotonic() >= until:
                raise SinkError(
                    f"sink {self.name}: the application in {self._application} has not read {unread} bytes of earlier "
                    f"batches for {self._settings.timeout:g} s, and max_unread is {self._settings.max_unread}; start "
                    "the application, or raise timeout or max_unread; no row is lost: the query's next start goes on "
                    "with this batch",
                    code="sink-behind",
                    unread=unread,
                )
            time.sleep(_LOOK_SECONDS)
        return rows

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Write the events durably to files that the application does not read yet."""
        generation = self._generation(transaction.batch)
        if self._is_readable(generation):
            raise SinkError(
                f"sink {self.name}: {self._own.identity} has batch {transaction.batch} already, so the query's "
                "checkpoint is older than what the stream has; start the query with the newest checkpoint, or give it "
                "another name= to write these rows again",
                code="sink-batch-unknown",
                batch=transaction.batch,
            )
        known = self._partitions()
        writing = _Writing(self._staged, transaction, origin_of(self._folder, generation), known)
        first = 0
        ids = f"{self.name}/{generation}/{transaction.partition}"
        for piece in rows:
            found = self._reader.events(piece, ids, first, known[self._settings.stream])
            for number, one in enumerate(found, first):
                writing.add(self._target(one, number, transaction.partition), one)
            first += piece.num_rows
        writing.write()
        return Prepared(transaction, first, {"files": [[file.rows, file.bytes] for file in writing.files]})

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Give the files of the batch the names under which they are read, and then claim their generation."""
        given = [
            (_file_of(one.transaction, number), rows, size)
            for one in prepared
            for number, (rows, size) in enumerate(one.detail.get("files", ()))
        ]
        generation = self._generation(batch)
        if given and not self._is_readable(generation):
            target = SidecarFolder(self._application, INBOX, self._folder, generation_name(generation), spark=session())
            with explained(self.name, f"commit batch {batch}", self._own.identity, OSError, CheckpointError):
                target.folder()
                there = set(target.names())
                for sequence, (staged, rows, size) in enumerate(given, 1):
                    name = InboxFile(sequence, rows, size).name
                    if name not in there and not self._move(staged, target, name, generation):
                        break
                    passed(SinkStep.HALF_COMMITTED)
                durable.sync_names(target.filesystem, target.path)
            if not self._is_readable(generation):
                self._own.write(claim_name(generation, "0" * 8), b"")
        self.abort([one for one in self.recover() if one.batch <= batch])

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete the staged files of transactions."""
        unwanted = set(transactions)
        for name in self._staged.names() if unwanted else ():
            if self._transaction_of(name) in unwanted:
                self._staged.delete(name)

    def recover(self) -> Sequence[Transaction]:
        """Return the transactions with a staged file, complete or not."""
        found = (self._transaction_of(name) for name in self._staged.names())
        return [*dict.fromkeys(one for one in found if one is not None)]

    def _target(self, one: RowEvent, number: int, partition: int) -> str:
        """The stream of an event. Raises :class:`SinkError` for a row that breaks a rule."""
        if not one.problem or self._settings.dead_letters:
            return self._settings.dead_letters if one.problem else self._settings.stream
        raise SinkError(
            f"sink {self.name}: row {number} of partition {partition} cannot be an event of {self._settings.stream}: "
            f"event {one.event.id[:100]!r} of {one.event.source[:100]!r} {one.problem}; filter such rows out, or give "
            "dead_letters= a stream that takes them",
            code="sink-row-invalid",
            row=number,
            event=one.event.id,
        )

    def _partitions(self) -> dict[str, int]:
        """The number of partitions of each stream that is written. Raises :class:`SinkError`."""
        schema = SchemaStore(self._application, session()).newest()
        found = {}
        for name in filter(None, (self._settings.stream, self._settings.dead_letters)):
            declared = schema.objects.get(ObjectKey("Stream", *name.split("/", 1)))
            if not isinstance(declared, StreamDeclaration):
                streams = ", ".join(sorted(key.path for key in schema.objects if key.kind == "Stream"))
                raise SinkError(
                    f"sink {self.name}: the application in {self._application} has no stream {name}; it has "
                    f"{streams or 'none'}; apply the schema that declares it, or correct the name",
                    code="sink-target",
                    stream=name,
                )
            found[name] = declared.partitions
        return found

    @property
    def _folder(self) -> str:
        return SINK + self.name

    @cached_property
    def _own(self) -> SidecarFolder:
        return SidecarFolder(self._application, INBOX, self._folder, spark=session())

    @cached_property
    def _staged(self) -> SidecarFolder:
        return SidecarFolder(self._application, INBOX, self._folder, STAGED, spark=session())

    def _generation(self, batch: int) -> int:
        """The generation of a batch. Raises :class:`SinkError` when the name belongs to another query."""
        identity = self._stage.identity()
        while (content := self._own.read(OWNER)) is None:
            names = self._own.names()
            last = max((*claimed(names).values(), *generation_folders(names)), default=0)
            self._own.create(OWNER, json.dumps({"identity": identity, "behind": last}).encode())
        owner = json.loads(content)
        if owner["identity"] != identity:
            raise SinkError(
                f"sink {self.name}: {self._own.identity} belongs to another query, or to an older checkpoint of this "
                f"one; give this query a name= of its own, or delete {OWNER} there if the other one is gone for ever",
                code="sink-folder-in-use",
                name=self.name,
            )
        return int(owner["behind"]) + batch + 1

    def _is_readable(self, generation: int) -> bool:
        """Whether a generation, or a newer one, was claimed. The newest claim is never deleted."""
        return max(claimed(self._own.names()).values(), default=0) >= generation

    def _move(self, staged: str, target: SidecarFolder, name: str, generation: int) -> bool:
        """Give a staged file its final name; False when another driver of this query has committed the batch."""
        try:
            self._staged.filesystem.move(self._staged.file(staged), target.file(name))
        except OSError:
            if self._staged.filesystem.get_file_info(target.file(name)).type == fs.FileType.File:
                return True
            if self._is_readable(generation):
                return False
            if self._staged.filesystem.get_file_info(self._staged.file(staged)).type == fs.FileType.File:
                raise
            raise SinkError(
                f"sink {self.name}: {self._staged.identity}/{staged} is gone, and its rows cannot be committed; "
                "restore it, or deliver the batch again from an older checkpoint",
                code="sink-rows-lost",
                file=staged,
            ) from None
        return True

    def _transaction_of(self, name: str) -> Transaction | None:
        return transaction_of(self.name, f"{name.rsplit('.', 2)[0]}.arrow")

    def _unread_bytes(self, files: CheckpointFiles, inbox: InboxReader) -> int:
        committed = files.committed()
        unread = inbox.unread(positions_in(files.source_offsets(committed) if committed is not None else ()))
        return sum(file.bytes for some in unread.get(self._folder, {}).values() for file in some)


class _Writing:
    """The files of one transaction."""

    def __init__(self, folder: SidecarFolder, transaction: Transaction, origin: str, known: dict[str, int]) -> None:
        self.files: list[InboxFile] = []
        """The files so far: their number of events, and their bytes."""
        self._folder, self._transaction, self._origin, self._known = folder, transaction, origin, known
        self._waiting: defaultdict[tuple[PartitionKey, int], list[CloudEvent]] = defaultdict(list)
        self._events = self._bytes = self._place = 0

    def add(self, stream: str, one: RowEvent) -> None:
        """Add an event behind all others of its partition."""
        known = self._known[stream]
        if one.partition is None:
            key = PartitionKey(stream, partition_of(one.event, known) if known > 1 else 0), known
        else:
            # The number 0 says that the row has named the partition.
            key = PartitionKey(stream, one.partition), 0
        self._waiting[key].append(one.event)
        self._events += 1
        self._bytes += one.event.size
        if self._events >= FILE_EVENTS or self._bytes >= FILE_BYTES:
            self.write()

    def write(self) -> None:
        """Write what waits to a file. Raises :class:`SinkError`."""
        if not self._waiting:
            return
        # An answer has no reader, so the controller is told to send none.
        reply = ReplyTo(DRIVER, 0, 0)
        rows = [
            (key, encode(RecordsPublished(reply, tuple(part), Durability.RECEIVED, known)))
            for (key, known), some in self._waiting.items()
            for part in _rows_of(some)
        ]
        batch = received_rows(self._origin, self._transaction.partition, rows, self._place)
        name = _file_of(self._transaction, len(self.files))
        try:
            with self._folder.new_file(name) as file:
                write_arrow(file, [batch])
        except OSError as error:
            raise SinkError(
                f"{self._folder.identity}: the events of {self._transaction.id} cannot be written: {error}; check that "
                "there is room and that executors may write in the application's folder",
                code="sink-write-failed",
                transaction=self._transaction.id,
            ) from error
        self.files.append(InboxFile(len(self.files), self._events, sum(len(event) for _, event in rows)))
        self._waiting.clear()
        self._place += len(rows)
        self._events = self._bytes = 0


def _rows_of(events: list[CloudEvent]) -> Iterator[list[CloudEvent]]:
    """The events of one partition in parts, each of which is one row of a file."""
    part: list[CloudEvent] = []
    size = 0
    for event in events:
        if size >= ROW_BYTES or len(part) >= ROW_EVENTS:
            yield part
            part, size = [], 0
        part.append(event)
        size += event.size
    yield part


def _file_of(transaction: Transaction, number: int) -> str:
    return f"{transaction.batch}.{transaction.partition}.{transaction.attempt}.{number}.arrow"
