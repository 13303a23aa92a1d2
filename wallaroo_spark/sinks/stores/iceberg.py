"""The sink ``iceberg``: tasks write Parquet files below an Iceberg table's location, and one commit adds a batch.

    <table>/data/<name>-<owner>.<batch>.<partition>.<attempt>.<n>.parquet   rows, in no snapshot before the commit
    <checkpoint>/_wallaroo/stages/<name>/                                   an empty file for each prepared transaction

The commit adds the files and sets a property of the table to the number of the batch, both or none. A property stays
when snapshots expire. The files have the ids of the table's columns, so a column that is renamed, or dropped and made
again, does not take the values of another. The commit is made with the package ``pyiceberg``, without Spark. Source:
``docs/sinks.md#iceberg``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from wallaroo_spark.errors import SinkError, WallarooError
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sidecar.syncing import sync
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import IcebergSettings
from wallaroo_spark.sinks.stores.staged_rows import explained, rows_lost
from wallaroo_spark.sinks.stores.table_rows import TableShape, TableSink, check_partitions, plain_schema, write_files
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

_MOST_TRIES = 10
"""The most tries of a commit that other writers come before. A choice."""
_RETRIES = "commit.retry.num-retries"
_NEWEST_FORMAT = 2
"""The newest version of a table's format for which ``pyiceberg`` writes manifests; for another one a commit fails."""


class _TableNow(NamedTuple):
    """What a task needs to write files of a table. Picklable."""

    shape: TableShape
    stored: pa.Schema
    """The columns with their ids."""
    newest: int
    location: str
    io: dict[str, str]
    version: dict[str, Any]
    """The table's identity, and the numbers of its columns and of its partitions."""


@function_takes_settings(IcebergSettings)
def iceberg(settings: IcebergSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to an Iceberg table, as :class:`IcebergSink`."""
    sink = IcebergSink(**vars(settings))
    return transactional(sink, checkpoint=settings.checkpoint, shape=sink.with_the_table_of_now)


class IcebergSink(TableSink["Table"]):
    """Appends rows to an Iceberg table that is there, columns by name. Methods raise :class:`SinkError`."""

    @takes_settings(IcebergSettings)
    def __init__(self, settings: IcebergSettings) -> None:
        super().__init__(settings.name, settings.checkpoint)
        self._identifier, self._catalog = settings.table, settings.catalog
        self._properties = dict(settings.properties or {})
        self._now: _TableNow | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self._identifier!r}, name={self.name!r})"

    def with_the_table_of_now(self, rows: DataFrame) -> DataFrame:
        """Return the rows, after the driver has asked the catalog for the table, so that its tasks need not."""
        self._now = self._read()
        return rows

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Write the rows to files at the table's location, which no snapshot has."""
        now = self._now or self._read()
        self._begin(transaction, now.newest)
        io = load_file_io(now.io, now.location)

        def open_file(number: int) -> tuple[str, AbstractContextManager[Any]]:
            path = _path(now.location, self._file(transaction, number))
            return path, _new_file(io, path)

        with self._explained(f"write {transaction.id}"):
            files = write_files(rows, now.shape, self._where, open_file, stored=now.stored)
        described = [
            {"path": one.path, "values": [_partition(value) for value in one.values.values()]} for one in files
        ]
        return Prepared(transaction, sum(one.rows for one in files), {"files": described, **now.version})

    def _remove(self, table: Table, file: str) -> bool:
        path = _path(table.location(), file)
        found: bool = table.io.new_input(path).exists()
        if found:
            table.io.delete(path)
        return found

    def _add(self, batch: int, given: Sequence[Prepared]) -> None:
        """Add the files of the batch to the table, and set the property to the batch."""
        for tries in range(1, _MOST_TRIES + 1):
            table = self._table()
            if self._newest(table) >= batch:
                return
            files = [self._described(table, one, file) for one in given for file in one.detail["files"]]
            # The package's own retry would not look again whether another driver has added the batch.
            table.metadata.properties[_RETRIES] = "0"
            with self._in_catalog(f"commit batch {batch}"):
                try:
                    with table.transaction() as changes:
                        changes.set_properties({self._property: str(batch)})
                        with changes.update_snapshot(
                            {"wallaroo.sink": self.name, "wallaroo.batch": str(batch)}
                        ).fast_append() as append:
                            for file in files:
                                append.append_data_file(file)
                    return
                except CommitFailedException:
                    if tries == _MOST_TRIES:
                        raise

    def _described(self, table: Table, one: Prepared, file: Mapping[str, Any]) -> DataFile:
        """A file as the table's manifests describe it. Raises :class:`SinkError` where it does not fit the table."""
        detail, path, metadata = one.detail, file["path"], table.metadata
        if str(metadata.table_uuid) != detail["table"]:
            raise rows_lost(self.name, one, f"{self._identifier} was dropped and made again")
        if metadata.default_spec_id != detail["spec"]:
            raise SinkError(
                f"{self._where} was divided otherwise after the files of this batch were written, which do not fit it "
                "any more; change its partitions back, start the query, and change them behind this batch",
                code="sink-target",
                table=self._identifier,
            )
        source = table.io.new_input(path)
        if not source.exists():
            raise rows_lost(self.name, one, f"{path} is gone")
        with self._explained(f"read {path}"), source.open() as stream:
            footer = parquet.read_metadata(stream)
        passed(SinkStep.HALF_COMMITTED)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*file["values"]),
            file_size_in_bytes=len(source),
            sort_order_id=None,
            spec_id=detail["spec"],
            equality_ids=None,
            key_metadata=None,
            **_statistics(footer, metadata, detail["schema"]),
        )

    def _read(self) -> _TableNow:
        table = self._table()
        if table.metadata.format_version > _NEWEST_FORMAT:
            raise SinkError(
                f"{self._where} has version {table.metadata.format_version} of Iceberg's format, and pyiceberg writes "
                f"versions up to {_NEWEST_FORMAT}; write to a table of such a version, or with Iceberg's own writer",
                code="sink-target",
                table=self._identifier,
            )
        stored = schema_to_pyarrow(table.schema())
        schema = plain_schema(stored, self._where, of_table=True)
        fields = table.spec().fields
        for one in fields:
            if not isinstance(one.transform, IdentityTransform):
                raise SinkError(
                    f"{self._where} is divided by {one.transform} of a column, and this sink writes to tables that are "
                    "divided by columns themselves, or not at all; write to another table, or with Iceberg's writer",
                    code="sink-target",
                    table=self._identifier,
                )
        columns = tuple(table.schema().find_column_name(one.source_id) or one.name for one in fields)
        shape = TableShape(schema, columns)
        check_partitions(shape, self._where)
        version = {
            "table": str(table.metadata.table_uuid),
            "schema": table.metadata.current_schema_id,
            "spec": table.metadata.default_spec_id,
        }
        return _TableNow(shape, stored, self._newest(table), table.location(), dict(table.io.properties), version)

    def _table(self) -> Table:
        """The table as it is now."""
        given = {name: str(value) for name, value in self._properties.items()}
        # Not file:PATH, because file: begins the URI of a warehouse.
        properties = {name: resolve_secret(text) if text.startswith("env:") else text for name, text in given.items()}
        with self._in_catalog("find the table"):
            try:
                return load_catalog(self._catalog, **properties).load_table(self._identifier)
            except NoSuchTableError:
                raise SinkError(
                    f"{self._where} is not in the catalog {self._catalog}; create it with the columns of the rows",
                    code="sink-target",
                    table=self._identifier,
                ) from None

    def _newest(self, table: Table) -> int:
        """The newest batch of this sink in the table; -1 without one."""
        return int(table.properties.get(self._property, -1))

    @property
    def _property(self) -> str:
        return f"wallaroo.{self.name}.{self._stage.identity()}"

    @property
    def _where(self) -> str:
        return f"sink {self.name}: table {self._identifier}"

    def _explained(self, action: str) -> AbstractContextManager[None]:
        return explained(self.name, action, self._identifier, OSError, pa.ArrowException, ValueError)

    @contextmanager
    def _in_catalog(self, action: str) -> Iterator[None]:
        """Raise any error as :class:`SinkError`, because the client of each catalog has errors of its own."""
        try:
            yield
        except WallarooError:
            raise
        except Exception as error:
            raise SinkError(
                f"{self._where}: could not {action} in the catalog {self._catalog}: {error}; check its properties, "
                "that it runs, and that driver and executors reach it and may write there",
                code="sink-write-failed",
                table=self._identifier,
            ) from error


def _path(location: str, file: str) -> str:
    return f"{location.rstrip('/')}/data/{file}"


def _partition(value: Any) -> Any:
    """The value of a partition as manifests have it: a date is its days since 1970."""
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else value


def _statistics(footer: parquet.FileMetaData, metadata: TableMetadata, schema_id: int) -> dict[str, Any]:
    """What manifests say of a file. A column has bounds only where Parquet knows those of all its values."""
    schema = next(one for one in metadata.schemas if one.schema_id == schema_id)
    ids, plan = parquet_path_to_id_mapping(schema), compute_statistics_plan(schema, metadata.properties)
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            one = ids[column.path_in_schema]
            if plan[one].mode.type not in (MetricModeTypes.NONE, MetricModeTypes.COUNTS) and not _bounded(column):
                plan[one] = replace(plan[one], mode=MetricsMode(MetricModeTypes.COUNTS))
    return dict(data_file_statistics_from_parquet_metadata(footer, plan, ids).to_serialized_dict())


def _bounded(column: Any) -> bool:
    """Whether the bounds of a column's values are known, and have values of Python."""
    found = column.statistics
    if found is None or not found.has_min_max:
        return found is not None and bool(found.null_count == column.num_values)
    try:
        return None not in (found.min, found.max)
    except OverflowError:
        # Times before the year 1 and behind 9999.
        return False


@contextmanager
def _new_file(io: Any, path: str) -> Iterator[Any]:
    """A stream to a new file, which is on the disk behind the block where the disk is this machine's."""
    with io.new_output(path).create() as stream:
        yield stream
    if path.startswith(("file:", "/")):
        sync(path.removeprefix("file://").removeprefix("file:"))
