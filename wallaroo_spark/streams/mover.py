"""Moves records and history of committed batches into the tables, and deletes old records and old history.

    <folder>/_wallaroo/tables/plan.json     the plan of the last move
                              moved.json    the newest batch that was moved
                              <n>.tmp       a joined file until it has its name in the table

Files of one partition that follow each other become one file until it is large, so the number of files in a table
depends on how often they are moved and not on the number of batches. Each step can be repeated: the plan is written
first, and a process that finds one carries out the same plan, so a record is never in two files of a table; a file has
its name in the table only when it is complete; a name that is there is not written again; ``moved.json`` is written
last. Source: ``docs/pipelines/engine.md#tables``.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.sidecar import durable
from wallaroo_spark.sidecar.folder import SidecarFolder
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest, OutputFile, write_parquet
from wallaroo_spark.streams.delta import DeltaLogs, MovedFile
from wallaroo_spark.streams.places import TABLES
from wallaroo_spark.streams.rows import HistoryKind, OutputKind
from wallaroo_spark.streams.table_files import MOVED, HistoryFile, TableFile, TableFolders, newest_time

LARGE_BYTES = 16 << 20
"""The size from which a file is moved as it is, and up to which small files are joined.

It bounds the driver's memory and work, and Spark reads files of this size well.
"""
FORMAT = 1
"""The version of the stored form."""


@dataclass(frozen=True)
class Move:
    """One file of a table, and the files of batches that it is made of."""

    kind: OutputKind
    """RECORDS or HISTORY."""
    key: PartitionKey
    """The partition of records; of the history, no stream and partition 0."""
    first: int
    """First offset of records; first batch of the history."""
    last: int
    """Last offset of records; last batch of the history."""
    number: int
    """Number of the file among those of the history; 0 for records."""
    sources: tuple[tuple[int, str], ...]
    """Batch and name of each file, in the order of the rows."""


class Forgotten(NamedTuple):
    """The records of a partition whose stream was deleted."""

    key: PartitionKey
    before: int
    """The first offset that stays."""


@dataclass(frozen=True)
class MovePlan:
    """The moves of some batches that follow each other."""

    first: int
    """First batch."""
    last: int
    """Last batch, inclusive."""
    moves: tuple[Move, ...]
    """The moves; their order does not matter."""
    forgotten: tuple[Forgotten, ...] = ()
    """The records to delete before the moves; none of them is moved."""

    def to_json(self) -> bytes:
        """Encode as the stored form."""
        return json.dumps({"version": FORMAT, **vars(self)}, default=vars).encode()

    @classmethod
    def from_json(cls, data: bytes) -> MovePlan:
        """Decode the stored form. Raises ``ValueError``, ``KeyError`` or ``TypeError`` when it is malformed."""
        values = json.loads(data)
        if values["version"] != FORMAT:
            raise ValueError(f"version {values['version']!r} is not known")
        moves = tuple(_move(move) for move in values["moves"])
        # A plan of an earlier release has no such field.
        forgotten = tuple(Forgotten(PartitionKey(*key), int(before)) for key, before in values.get("forgotten", ()))
        return cls(int(values["first"]), int(values["last"]), moves, forgotten)


def plan_moves(first: int, last: int, manifests: Iterable[Manifest], large: int = LARGE_BYTES) -> MovePlan:
    """The plan for the batches from ``first`` to ``last``; ``manifests`` are theirs, in their order."""
    files = [file for manifest in manifests for file in manifest.files]
    forgotten: dict[PartitionKey, int] = {}
    for file in files:
        if file.kind is OutputKind.FORGET:
            forgotten[file.key] = max(file.first or 0, forgotten.get(file.key, 0))
    parts: dict[tuple[OutputKind, PartitionKey], list[OutputFile]] = {}
    for file in files:
        kept = file.kind is OutputKind.RECORDS and (file.last or 0) >= forgotten.get(file.key, 0)
        if kept or file.kind is OutputKind.HISTORY:
            parts.setdefault((file.kind, file.key), []).append(file)
    moves = []
    for (kind, key), parted in parts.items():
        for number, joined in enumerate(_joined(parted, large)):
            sources = tuple((file.batch, file.name) for file in joined)
            if kind is OutputKind.HISTORY:
                moves.append(Move(kind, key, first, last, number, sources))
            else:
                moves.append(Move(kind, key, joined[0].first or 0, joined[-1].last or 0, 0, sources))
    return MovePlan(first, last, tuple(moves), tuple(Forgotten(*one) for one in sorted(forgotten.items())))


def _joined(files: Iterable[OutputFile], large: int) -> Iterator[list[OutputFile]]:
    """Files that follow each other, in groups of at most ``large`` bytes; a larger file stands alone."""
    group: list[OutputFile] = []
    size = 0
    for file in files:
        follows = not group or file.kind is OutputKind.HISTORY or file.first == (group[-1].last or 0) + 1
        if group and (size + file.bytes > large or not follows):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group


def _move(values: dict[str, Any]) -> Move:
    sources = tuple((int(batch), str(name)) for batch, name in values["sources"])
    return Move(
        **values | {"kind": OutputKind(values["kind"]), "key": PartitionKey(*values["key"]), "sources": sources}
    )


_PLAN = "plan.json"
_MOST_BATCHES = 1024
"""The most batches of one plan: a choice that bounds the manifests in memory."""


class TableMover:
    """The one mover of the application in ``folder``, as the session ``spark`` opens it; for one thread at a time.

    ``delta`` are the logs of Delta that are kept beside the tables, if they are wanted. Methods raise
    :class:`wallaroo_spark.errors.CheckpointError` when files cannot be read, written or moved; the call can be
    repeated.
    """

    def __init__(
        self, folder: Location, spark: Any = None, *, large: int = LARGE_BYTES, delta: DeltaLogs | None = None
    ) -> None:
        self._delta = delta
        self._tables = TableFolders(folder, spark)
        self._outputs = BatchOutputs(folder, spark)
        self._folder = SidecarFolder(folder, TABLES, spark=spark)
        self._large = large
        self._moved: int | None = None

    def __repr__(self) -> str:
        return f"TableMover({self._tables.identity!r})"

    def move(self, batch: int) -> None:
        """Move the records and the history of all batches up to ``batch``, which must be committed, into the tables.

        Small files of a partition that are moved by one call become one file: the seldomer the calls, the fewer files.
        Does nothing if the batches were moved before.
        """
        moved = self.moved_to()
        while moved < batch:
            last = min(batch, moved + _MOST_BATCHES)
            manifests = [self._outputs.manifest(number) for number in range(moved + 1, last + 1)]
            plan = plan_moves(moved + 1, last, [one for one in manifests if one is not None], self._large)
            if plan.moves or plan.forgotten:
                self._folder.write(_PLAN, plan.to_json())
                self._carry_out(plan)
            self._moved = moved = last

    def moved_to(self) -> int:
        """The newest batch that was moved; -1 before the first one. Finishes a move that a dead process has begun."""
        if self._moved is None:
            self._folder.delete_drafts()
            moved, plan = self._folder.read(MOVED), self._folder.read(_PLAN)
            found = -1 if moved is None else int(json.loads(moved)["batch"])
            # Batches are deleted only after they were moved. A batch without records changes no file here.
            newest = max(found, self._outputs.kept_from() - 1)
            if plan is not None:
                unfinished = MovePlan.from_json(plan)
                if unfinished.last > found:
                    self._carry_out(unfinished)
                    newest = max(newest, unfinished.last)
            if self._delta is not None:
                self._delta.adopt(self._tables)
            self._moved = newest
        return self._moved

    def expired(self, stream: str, partition: int, before: int) -> int | None:
        """The offset from which records are kept if those written before ``before`` (milliseconds) are deleted.

        Whole files are deleted, so some records before that time stay. None when there is no file to delete. Reads one
        file more than can be deleted.
        """
        self.moved_to()
        key, kept = PartitionKey(stream, partition), None
        for file in self._tables.listed(key):
            with self._tables.reading(self._tables.records(key, file.first, file.last)) as rows:
                if newest_time(rows, "written_at") >= before * 1000:
                    break
            kept = file.last + 1
        return kept

    def expire(self, stream: str, partition: int, before: int) -> int:
        """Delete the files whose records are all before the offset ``before``; return how many were deleted.

        Call it once the batch is committed in which the partition's controller has handled ``RecordsExpired(before)``.
        """
        self.moved_to()
        return self._delete(PartitionKey(stream, partition), before)

    def _delete(self, key: PartitionKey, before: int) -> int:
        """Delete the files of a partition whose records are all before an offset; return how many were deleted."""
        old = [file for file in self._tables.listed(key) if file.last < before]
        if self._delta is not None:
            self._delta.remove(self._tables, key, old)
        for file in old:
            self._tables.delete(self._tables.records(key, file.first, file.last))
        return len(old)

    def _carry_out(self, plan: MovePlan) -> None:
        for key, before in plan.forgotten:
            self._delete(key, before)
            if self._tables.delete_empty(key) and self._delta is not None:
                self._delta.forget(key.stream)
        for number, move in enumerate(plan.moves):
            target = self._target(move)
            try:
                if not self._tables.exists(target):
                    self._tables.take(self._source(move, number), target)
            except (OSError, pa.ArrowInvalid) as error:
                raise self._tables.unwritable(target, "written", error) from error
        if self._delta is not None:
            self._delta.add(self._tables, plan.last, _moved_records(plan))
        self._folder.write(MOVED, json.dumps({"batch": plan.last}).encode())

    def _target(self, move: Move) -> str:
        if move.kind is OutputKind.HISTORY:
            return self._tables.history(move.first, move.last, move.number)
        return self._tables.records(move.key, move.first, move.last)

    def _source(self, move: Move, number: int) -> str:
        """The path of the file that gets a name in the table: the one source, or the joined sources."""
        paths = [self._outputs.file_of(batch, name) for batch, name in move.sources]
        if len(paths) == 1:
            return paths[0]
        joined = self._folder.file(f"{number}.tmp")
        self._folder.folder()
        with durable.new_file(self._tables.filesystem, joined, sync_name=False) as stream:
            write_parquet(stream, pa.concat_tables(self._rows(path) for path in paths))
        return joined

    def _rows(self, path: str) -> pa.Table:
        with contextlib.closing(self._tables.open(path)) as file:
            return file.read()


def _moved_records(plan: MovePlan) -> list[MovedFile]:
    """The files of tables that a plan has made."""
    moves = (one for one in plan.moves if one.kind is OutputKind.RECORDS)
    return [(one.key, TableFile(one.first, one.last)) for one in moves]


_COLUMNS = ["pipeline", "partition", "instance", "birth", "kind"]


class InstanceKey(NamedTuple):
    """The identity of an instance."""

    pipeline: str
    partition: int
    """Partition of the pipeline's input."""
    instance: int
    """Its number."""
    birth: int
    """Version of the schema with which its pipeline was declared first."""


class HistoryExpiry:
    """The expiry of the history in ``tables``; for one thread at a time.

    Each file is read once in the life of this object, when all of it is old. An active instance keeps the file of its
    begin and all newer files.
    """

    def __init__(self, tables: TableFolders) -> None:
        self._tables = tables
        self._read: deque[HistoryFile] = deque()
        """The old files that are there, in their order."""
        self._last: HistoryFile | None = None
        """The newest file that was read."""
        self._active: dict[InstanceKey, HistoryFile] = {}
        """The instances that have not ended in the files that were read, with the files of their begins, in order."""

    def expire(self, before: int) -> int:
        """Delete the files whose instances have all ended before ``before`` (milliseconds); return their number.

        Raises :class:`wallaroo_spark.errors.CheckpointError` when a file cannot be read or deleted; the call can be
        repeated.
        """
        for file in self._tables.listed_history():
            if self._last is not None and file <= self._last:
                continue
            if not self._take(file, before):
                break
        deleted = 0
        oldest = next(iter(self._active.values()), None)
        while self._read and (oldest is None or self._read[0] < oldest):
            self._tables.delete(self._read[0].path)
            self._read.popleft()
            deleted += 1
        return deleted

    def _take(self, file: HistoryFile, before: int) -> bool:
        """Read a file if all of its rows are old; return whether they are."""
        with self._tables.reading(file.path) as rows:
            if newest_time(rows, "at") >= before * 1000:
                return False
            found = rows.read(columns=_COLUMNS)
        # The rows of a file are not in the order of time, so an end may stand before its begin.
        ended = _instances(found, HistoryKind.ENDED)
        for key in _instances(found, HistoryKind.BEGAN) - ended:
            self._active[key] = file
        for key in ended:
            self._active.pop(key, None)
        self._read.append(file)
        self._last = file
        return True


def _instances(rows: pa.Table, kind: HistoryKind) -> set[InstanceKey]:
    chosen = rows.filter(pc.equal(rows.column("kind"), str(kind)))
    values = (chosen.column(name).to_pylist() for name in InstanceKey._fields)
    return {InstanceKey(*one) for one in zip(*values, strict=True)}
