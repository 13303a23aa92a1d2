"""The sink ``files``: a batch is a folder, which is written in a staging folder and made visible by one rename.

    <path>/.staging/<name>/…                              prepared rows
    <path>/batch=000000017/part-00000.parquet             committed rows, visible to readers
    <path>/batch=000000017/_wallaroo.json                 the sink that wrote the batch; readers ignore such names

The sink needs a rename that moves a whole folder atomically. Local file systems and HDFS have one. Object stores copy
each file, so they are refused. Each format of files is a function that writes record batches of one schema.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow import fs, parquet

from wallaroo_spark.columnar.python_values import python_values
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sidecar import durable
from wallaroo_spark.sidecar.task_access import write_arrow
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import FilesSettings
from wallaroo_spark.sinks.stores.staged_rows import StagedRows, explained, file_of, rows_lost, transaction_of
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed
from wallaroo_spark.storage.locations import Location, for_tasks, open_location, session

_GATHERED_BYTES = 64 << 20
"""Least bytes in memory of a row group of a Parquet file, except of the last one.

A choice: readers take a row group at once, and small ones cost them time.
"""

Write = Callable[[Any, pa.Schema, Iterable[pa.RecordBatch]], None]


def _parquet(stream: Any, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    with parquet.ParquetWriter(stream, schema, compression="snappy") as writer:
        for table in gathered(rows):
            writer.write_table(table)


def _arrow(stream: Any, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    write_arrow(stream, rows, schema=schema, compression="lz4", random_access=True)


def _json(stream: Any, schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
    for piece in rows:
        columns = [_plain_column(column, name) for name, column in zip(schema.names, piece.columns, strict=True)]
        lines = (encode(dict(zip(schema.names, row, strict=True))) for row in zip(*columns, strict=True))
        stream.write("".join(f"{line}\n" for line in lines).encode())


FORMATS: dict[str, Write] = {"parquet": _parquet, "json": _json, "arrow": _arrow}
"""The functions that write rows to a binary stream, by the name of the format, which is also the file suffix."""


def gathered(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows in tables of a size that is worth reading at once."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for piece in rows:
        gathered.append(piece)
        size += piece.nbytes
        if size >= _GATHERED_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _plain_column(column: pa.Array, name: str) -> list[Any]:
    """The values of a column in the form for JSON: bytes as base64, decimals as text, dates and times as ISO 8601."""
    kind = column.type
    values = python_values(column)
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return values
    try:
        return [_plain(value, kind) for value in values]
    except TypeError as error:
        raise SinkError(
            f"column {name} of type {kind} cannot be written as JSON: {error}; convert it to a string first",
            code="sink-columns",
            column=name,
        ) from error


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{value:+}".replace("inf", "Infinity")
        )
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if pa.types.is_decimal(kind):
        return str(value)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return value.isoformat()
    if pa.types.is_map(kind):
        return {str(_plain(key, kind.key_type)): _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_nested(kind):
        return [_plain(item, kind.value_type) for item in value]
    raise TypeError(f"no rule for {type(value).__name__}")


STAGING = ".staging"
OWNER = "_wallaroo.json"
_SCHEMES = ("file", "hdfs", "viewfs")
_OBJECT_STORES = ("/dbfs", "/Volumes")


@function_takes_settings(FilesSettings)
def files(settings: FilesSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to folders of files, as :class:`FilesSink`."""
    return transactional(FilesSink(**vars(settings)), checkpoint=settings.checkpoint)


class FilesSink:
    """Writes each batch to a folder ``batch=<nine digits>`` of ``path``, a file for each partition that has rows.

    A batch without rows has no folder. Only one query can write to a path: the batches of a second query are refused.
    Raises :class:`ConfigurationError` for a path without atomic renames; methods raise :class:`SinkError`.
    """

    @takes_settings(FilesSettings)
    def __init__(self, settings: FilesSettings) -> None:
        self.name = settings.name
        _check_place(settings.name, settings.path)
        self._path: Location = settings.path
        self._format = settings.format
        self._stage = StagedRows(settings.checkpoint, settings.name)
        self.in_tasks = (settings.checkpoint, settings.path)

    def __repr__(self) -> str:
        return f"FilesSink({str(self._path)!r}, name={self.name!r}, format={self._format!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_opened", "in_tasks")}
        return {**kept, "_path": for_tasks(self._path, session())}

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Write the rows durably to a file in the staging folder."""
        pieces = (piece for piece in rows if piece.num_rows)
        first = next(pieces, None)
        with self._explained(f"write {transaction.id}"):
            if self._is_there(transaction.batch):
                raise self._taken(transaction.batch, "is committed already")
            if first is None:
                return Prepared(transaction, 0)
            counts: list[int] = []

            def counted() -> Iterator[pa.RecordBatch]:
                for piece in chain([first], pieces):
                    counts.append(piece.num_rows)
                    yield piece

            path = f"{self._staging}/{self._file(transaction)}"
            durable.make_folder(self._opened[0], self._staging)
            with durable.new_file(self._opened[0], path) as stream:
                FORMATS[self._format](stream, first.schema, counted())
        return Prepared(transaction, sum(counts))

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Move the batch's files to one folder, and rename that folder to its final name."""
        given = [one for one in prepared if one.rows]
        with self._explained(f"commit batch {batch}"):
            if given and not self._is_there(batch):
                self._publish(batch, given)
            self._clear(batch)

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete the staged files of transactions."""
        with self._explained("abort"):
            for transaction in transactions:
                durable.delete_file(self._opened[0], f"{self._staging}/{self._file(transaction)}")

    def recover(self) -> Sequence[Transaction]:
        """Return the transactions with a staged file, complete or not."""
        with self._explained("recover"):
            found = self._opened[0].get_file_info(fs.FileSelector(self._staging, allow_not_found=True))
        names = (info.base_name.removesuffix(f".{self._format}") + ".arrow" for info in found)
        return [one for one in (transaction_of(self.name, name) for name in names) if one is not None]

    def _publish(self, batch: int, given: Sequence[Prepared]) -> None:
        filesystem, root = self._opened
        target, ready = f"{root}/{_folder(batch)}", f"{self._staging}/{_folder(batch)}"
        durable.make_folder(filesystem, ready)
        for one in given:
            part = f"{ready}/part-{one.transaction.partition:05d}.{self._format}"
            staged = f"{self._staging}/{self._file(one.transaction)}"
            if self._kind(staged) == fs.FileType.File:
                filesystem.move(staged, part)
            elif self._kind(part) != fs.FileType.File and not self._is_there(batch):
                raise rows_lost(self.name, one, f"{staged} is gone")
            passed(SinkStep.HALF_COMMITTED)
        owner = json.dumps({"sink": self.name, "owner": self._stage.identity(), "batch": batch}).encode()
        durable.write_file(filesystem, f"{ready}/{OWNER}", owner)
        try:
            # Hadoop would move the folder into an existing folder of that name.
            if not self._is_there(batch):
                filesystem.move(ready, target)
        except OSError:
            # Another driver of this query may have renamed the batch first.
            if not self._is_there(batch):
                raise
        durable.sync_names(filesystem, root)

    def _is_there(self, batch: int) -> bool:
        """Whether readers see the batch. Raises :class:`SinkError` when this sink has not written its folder."""
        filesystem, root = self._opened
        folder = f"{root}/{_folder(batch)}"
        try:
            with filesystem.open_input_stream(f"{folder}/{OWNER}") as stream:
                owner = json.loads(stream.read())
        except FileNotFoundError:
            if self._kind(folder) != fs.FileType.NotFound:
                raise self._taken(batch, "exists, and no sink has written it") from None
            return False
        except ValueError as error:
            raise self._taken(batch, f"has an {OWNER} that cannot be read: {error}") from error
        if (owner.get("sink"), owner.get("owner")) != (self.name, self._stage.identity()):
            raise self._taken(
                batch, f"was written by sink {owner.get('sink')} of another query or of an older checkpoint"
            )
        return True

    def _clear(self, batch: int) -> None:
        """Delete the staged files of this batch and of earlier ones, also those of abandoned task attempts."""
        self.abort([one for one in self.recover() if one.batch <= batch])
        filesystem, _ = self._opened
        left = f"{self._staging}/{_folder(batch)}"
        if self._kind(left) == fs.FileType.Directory:
            filesystem.delete_dir(left)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        opened = open_location(self._path, session())
        if opened.objects:
            raise _no_renames(self.name, opened.identity)
        return opened.filesystem, opened.root

    @property
    def _staging(self) -> str:
        return f"{self._opened[1]}/{STAGING}/{self.name}"

    def _file(self, transaction: Transaction) -> str:
        return file_of(transaction).removesuffix("arrow") + self._format

    def _kind(self, path: str) -> Any:
        return self._opened[0].get_file_info(path).type

    def _taken(self, batch: int, why: str) -> SinkError:
        return SinkError(
            f"sink {self.name}: {self._path}/{_folder(batch)} {why}; give the query a path of its own, or move that "
            "folder away",
            code="sink-folder-in-use",
            path=self._path,
            batch=batch,
        )

    def _explained(self, action: str) -> AbstractContextManager[None]:
        return explained(self.name, action, str(self._path), OSError, pa.ArrowException)


def _folder(batch: int) -> str:
    return f"batch={batch:09d}"


def _check_place(name: str, path: str) -> None:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", path)
    known = scheme is None or scheme[1].lower() in _SCHEMES
    mounted = any(path.startswith((f"{mount}/", f"file:{mount}/", f"file://{mount}/")) for mount in _OBJECT_STORES)
    if not known or mounted or not path.strip():
        raise _no_renames(name, path)


def _no_renames(name: str, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"sink {name}: {path!r} has no atomic rename of folders (object stores copy file by file); "
        f"use a local path or a URI of {', '.join(_SCHEMES)}, or Spark's own sinks for that store",
        code="no-atomic-rename",
        path=path,
    )
