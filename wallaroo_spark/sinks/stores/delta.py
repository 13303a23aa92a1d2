"""The sink ``delta``: tasks write Parquet files into a Delta table's folder, and one entry of its log adds a batch.

    <table>/<name>-<owner>.<batch>.<partition>.<attempt>.<n>.parquet   rows, which no reader sees before the entry
    <table>/_delta_log/…                                               the entry has the batch as its transaction
    <checkpoint>/_wallaroo/stages/<name>/                              an empty file for each prepared transaction

Delta's own transaction of an application says which batch is there: the application is the sink and its checkpoint, the
version the batch. Delta refuses an entry of a version that another driver has written meanwhile. The log is written
with the package ``deltalake``, without Spark. Source: ``docs/sinks.md#delta-lake``.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake import Transaction as DeltaTransaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from wallaroo_spark.errors import SinkError
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sidecar import durable
from wallaroo_spark.sidecar.syncing import sync
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import DeltaSettings
from wallaroo_spark.sinks.stores.staged_rows import explained, rows_lost
from wallaroo_spark.sinks.stores.table_rows import (
    TableShape,
    TableSink,
    WrittenFile,
    check_partitions,
    plain_schema,
    write_files,
)
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed
from wallaroo_spark.storage.locations import Location, for_tasks, is_local, open_location, session
from wallaroo_spark.streams.delta import delta_address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNKNOWN = ("delta.enableRowTracking", "delta.enableIcebergCompat")
_OF_FIELDS = ("delta.generationExpression", "delta.invariants", "delta.identity.start")
_KEPT = {
    *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns"),
    *("invariants", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview"),
}
"""Features of a table for which ``deltalake`` writes an entry; for another one it fails, when the batch is decided."""
_MOST_TRIES = 5
"""The most tries of an entry that other writers come before. A choice: ``deltalake`` tries each of them 15 times."""


@function_takes_settings(DeltaSettings)
def delta(settings: DeltaSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a Delta table, as :class:`DeltaSink`."""
    sink = DeltaSink(**vars(settings))
    return transactional(sink, checkpoint=settings.checkpoint, shape=sink.with_the_shape_of_now)


class DeltaSink(TableSink[DeltaTable | None]):
    """Appends rows to a Delta table, columns by name, and creates the table with the first batch that has rows.

    Raises :class:`ConfigurationError` for settings that cannot work; methods raise :class:`SinkError`.
    """

    @takes_settings(DeltaSettings)
    def __init__(self, settings: DeltaSettings) -> None:
        super().__init__(settings.name, settings.checkpoint)
        self._path: Location = settings.path
        # A folder that cannot have the log is refused before Spark is asked for it.
        delta_address(self._path)
        given: str | Sequence[str] = settings.partition_by
        self._partitions: tuple[str, ...] = tuple(given.split(",") if isinstance(given, str) else given)
        self.in_tasks = (settings.checkpoint, settings.path)
        self._shape: tuple[TableShape | None, int] | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({str(self._path)!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in self.__dict__.items() if key not in ("_opened", "_address", "in_tasks")}
        return {**kept, "_path": for_tasks(self._path, session())}

    def with_the_shape_of_now(self, rows: DataFrame) -> DataFrame:
        """Return the rows, after the driver has read the table's columns, so that its tasks need not."""
        self._shape = self._read()
        return rows

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Write the rows to files in the table's folder, which its log does not know."""
        shape, newest = self._shape or self._read()
        self._begin(transaction, newest)
        pieces = (piece for piece in rows if piece.num_rows)
        first = next(pieces, None)
        if first is None:
            return Prepared(transaction, 0)
        if shape is None:
            found = plain_schema(first.schema, self._where)
            shape = TableShape(pa.schema([one.with_nullable(True) for one in found]), self._partitions)
        check_partitions(shape, self._where)
        filesystem, root = self._opened

        def open_file(number: int) -> tuple[str, AbstractContextManager[Any]]:
            name = self._file(transaction, number)
            return name, durable.new_file(filesystem, f"{root}/{name}")

        def all_of_it() -> Iterator[pa.RecordBatch]:
            yield first
            yield from pieces

        with self._explained(f"write {transaction.id}"):
            durable.make_folder(filesystem, root)
            files = write_files(all_of_it(), shape, self._where, open_file)
            described = [self._described(one, shape) for one in files]
        schema = Schema.from_arrow(shape.schema).to_json()
        detail = {
            "files": described,
            "schema": schema,
            "partitions": list(shape.partitions),
            "columns": list(first.schema.names),
        }
        return Prepared(transaction, sum(one.rows for one in files), detail)

    def _remove(self, table: DeltaTable | None, file: str) -> bool:
        filesystem, root = self._opened
        found: bool = filesystem.get_file_info(f"{root}/{file}").is_file
        if found:
            durable.delete_file(filesystem, f"{root}/{file}")
        return found

    def _add(self, batch: int, given: Sequence[Prepared]) -> None:
        """Add the files of the batch to the table's log, in one entry."""
        detail = given[0].detail
        properties = CommitProperties(app_transactions=[DeltaTransaction(self._application, batch)])
        for tries in range(1, _MOST_TRIES + 1):
            table = self._table()
            if self._newest(table) < batch:
                if table is not None:
                    self._check_unchanged(table, detail)
                actions: list[Any] = [self._action(one, file) for one in given for file in one.detail["files"]]
                with self._explained(f"commit batch {batch}"):
                    try:
                        if table is None:
                            table = self._created(detail["schema"], detail["partitions"])
                            self._check_unchanged(table, detail)
                        table.create_write_transaction(
                            actions, "append", table.schema(), detail["partitions"], commit_properties=properties
                        )
                    except CommitFailedError:
                        # Another writer was faster: perhaps another driver of this query, with this batch.
                        if tries == _MOST_TRIES:
                            raise
                        continue
            assert table is not None
            self._settle(table.version())
            return

    def _created(self, schema: str, partitions: Sequence[str]) -> DeltaTable:
        return DeltaTable.create(
            self._root,
            Schema.from_json(schema),
            mode="ignore",
            partition_by=list(partitions),
            storage_options=self._options,
        )

    def _action(self, one: Prepared, file: Mapping[str, Any]) -> AddAction:
        filesystem, root = self._opened
        path = f"{root}/{file['path']}"
        if filesystem.get_file_info(path).size != file["size"]:
            raise rows_lost(self.name, one, f"{path} is not as it was written")
        passed(SinkStep.HALF_COMMITTED)
        return AddAction(file["path"], file["size"], file["values"], file["modified"], True, file["statistics"])

    def _settle(self, version: int) -> None:
        """Return when the newest entries of the log are on the disk; ``deltalake`` does not wait for that."""
        filesystem, root = self._opened
        if is_local(filesystem):
            with self._explained("sync the log"):
                # The entry before may be the one that has created the table. Where a checkpoint of the log has replaced
                # entries, and these were deleted, the checkpoint is what counts.
                names = [f"{number:020d}" for number in range(max(0, version - 1), version + 1)]
                names = [f"{name}{end}" for name in names for end in (".json", ".checkpoint.parquet")]
                for name in [*names, "_last_checkpoint"]:
                    with contextlib.suppress(FileNotFoundError):
                        sync(f"{root}/_delta_log/{name}")
                durable.sync_names(filesystem, f"{root}/_delta_log")

    def _check_unchanged(self, table: DeltaTable, detail: Mapping[str, Any]) -> None:
        """Raise :class:`SinkError` where the table has changed so that prepared files do not fit it any more."""
        now = self._shape_of(table)
        old = plain_schema(pa.schema(Schema.from_json(detail["schema"]).to_arrow()), self._where)
        written = detail["columns"]
        changes = [
            f"column {name} is {now.schema.field(name).type if name in now.schema.names else 'missing'}, "
            f"and was {old.field(name).type}"
            for name in written
            if name not in now.schema.names or now.schema.field(name).type != old.field(name).type
        ]
        changes += [
            f"column {one.name} may not be null"
            for one in now.schema
            if not one.nullable and (one.name not in written or old.field(one.name).nullable)
        ]
        if list(now.partitions) != detail["partitions"]:
            changes += [f"it is divided by {', '.join(now.partitions) or 'nothing'}"]
        if changes:
            raise SinkError(
                f"{self._where} was changed after the files of this batch were written, which do not fit it any more: "
                f"{'; '.join(changes)}; change the table back, start the query, and change the table behind this batch",
                code="sink-target",
                path=str(self._path),
            )

    def _shape_of(self, table: DeltaTable) -> TableShape:
        self._check_features(table)
        schema = plain_schema(pa.schema(table.schema().to_arrow()), self._where, of_table=True)
        return TableShape(schema, tuple(table.metadata().partition_columns))

    def _read(self) -> tuple[TableShape | None, int]:
        """The shape of the table, None where there is none yet, and its newest batch of this sink."""
        table = self._table()
        if table is None:
            return None, -1
        shape = self._shape_of(table)
        if self._partitions not in ((), shape.partitions):
            raise SinkError(
                f"{self._where} is divided by {', '.join(shape.partitions) or 'nothing'}, and partition_by is "
                f"{', '.join(self._partitions)}; leave partition_by out, or write to a table of its own",
                code="sink-target",
                path=str(self._path),
            )
        return shape, self._newest(table)

    def _check_features(self, table: DeltaTable) -> None:
        """Raise :class:`SinkError` for a table whose rules only Delta's writer in Spark keeps."""
        metadata = table.metadata()
        on = [
            name
            for name, value in metadata.configuration.items()
            if name.startswith("delta.constraints.")
            or (name == "delta.columnMapping.mode" and value != "none")
            or (name.startswith(_UNKNOWN) and value == "true")
        ]
        on += [f"the feature {name}" for name in table.protocol().writer_features or [] if name not in _KEPT]
        for one in json.loads(table.schema().to_json())["fields"]:
            on += [f"{name} of column {one['name']}" for name in _OF_FIELDS if name in one["metadata"]]
            on += [f"NOT NULL within column {one['name']}"] if _has_parts_without_null(one["type"]) else []
        if on:
            raise SinkError(
                f"{self._where} has {', '.join(on)}, which this sink does not keep; remove it from "
                "the table, or write the batch with Delta's own writer in Spark, as the page on sinks says",
                code="sink-target",
                path=str(self._path),
            )

    def _table(self) -> DeltaTable | None:
        """The table as it is now; None where there is none."""
        with self._explained("read the log"):
            try:
                return DeltaTable(self._root, storage_options=self._options)
            except TableNotFoundError:
                return None

    def _newest(self, table: DeltaTable | None) -> int:
        """The newest batch of this sink in a table; -1 without one."""
        known = table.transaction_version(self._application) if table is not None else None
        return -1 if known is None else int(known)

    @property
    def _where(self) -> str:
        return f"sink {self.name}: {self._path}"

    @property
    def _application(self) -> str:
        return f"wallaroo/{self.name}/{self._stage.identity()}"

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        opened = open_location(self._path, session())
        return opened.filesystem, opened.root

    @cached_property
    def _address(self) -> tuple[str, dict[str, str]]:
        return delta_address(for_tasks(self._path, session()))

    @property
    def _root(self) -> str:
        return self._address[0]

    @property
    def _options(self) -> dict[str, str]:
        return self._address[1]

    def _described(self, file: WrittenFile, shape: TableShape) -> dict[str, Any]:
        filesystem, root = self._opened
        values = {name: _text(value) for name, value in file.values.items()}
        for name, value in values.items():
            if value is None and not shape.schema.field(name).nullable:
                raise SinkError(
                    f"{self._where}: column {name} divides the table and may not be null there, and a row has an empty "
                    "text, which is null in the log of Delta: give such rows another value",
                    code="sink-columns",
                    column=name,
                )
        return {
            "path": file.path,
            "size": filesystem.get_file_info(f"{root}/{file.path}").size,
            "values": values,
            "modified": int(time.time() * 1000),
            # Without ranges of columns: deltalake's reader finds no rows by a column that lacks one which others have.
            "statistics": json.dumps({"numRecords": file.rows}),
        }

    def _explained(self, action: str) -> AbstractContextManager[None]:
        return explained(self.name, action, str(self._path), OSError, pa.ArrowException, DeltaError)


def _text(value: Any) -> str | None:
    """The value of a partition as Delta's log has it; an empty text is null there."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _has_parts_without_null(kind: Any) -> bool:
    if not isinstance(kind, Mapping):
        return False
    if not (kind.get("containsNull", True) and kind.get("valueContainsNull", True)):
        return True
    parts = [kind.get("elementType"), kind.get("keyType"), kind.get("valueType")]
    fields = kind.get("fields", [])
    return any(not one["nullable"] for one in fields) or any(
        map(_has_parts_without_null, [*parts, *(one["type"] for one in fields)])
    )
