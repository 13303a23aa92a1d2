"""The sink ``iceberg``: tasks write Parquet files below an Iceberg table's location, and one commit adds a batch.

    <table>/data/<name>-<owner>.<batch>.<partition>.<attempt>.<n>.parquet   rows, in no snapshot before the commit
    <checkpoint>/_wallaroo/stages/<name>/                                   an empty file for each prepared transaction

The commit adds the files and sets a property of the table to the number of the batch, both or none. A property stays
when snapshots expire. The commit is made with the package ``pyiceberg``, without Spark. Source:
``docs/sinks.md#iceberg``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import IdentityTransform

from wallaroo_spark.errors import SinkError
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


class _TableNow(NamedTuple):
    """What a task needs to write files of a table. Picklable."""

    shape: TableShape
    newest: int
    location: str
    io: dict[str, str]


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
            files = write_files(rows, now.shape, self._where, open_file, keep_partitions=True)
        return Prepared(transaction, sum(one.rows for one in files), {"files": [one.path for one in files]})

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
            for one in given:
                for path in one.detail["files"]:
                    if not table.io.new_input(path).exists():
                        raise rows_lost(self.name, one, f"{path} is gone")
                passed(SinkStep.HALF_COMMITTED)
            # The package's own retry would not look again whether another driver has added the batch.
            table.metadata.properties[_RETRIES] = "0"
            with self._explained(f"commit batch {batch}"):
                try:
                    with table.transaction() as changes:
                        changes.set_properties({self._property: str(batch)})
                        changes.add_files(
                            [path for one in given for path in one.detail["files"]],
                            {"wallaroo.sink": self.name, "wallaroo.batch": str(batch)},
                            check_duplicate_files=False,
                        )
                    return
                except CommitFailedException:
                    if tries == _MOST_TRIES:
                        raise

    def _read(self) -> _TableNow:
        table = self._table()
        schema = plain_schema(schema_to_pyarrow(table.schema(), include_field_ids=False), self._where)
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
        return _TableNow(shape, self._newest(table), table.location(), dict(table.io.properties))

    def _table(self) -> Table:
        """The table as it is now."""
        given = {name: str(value) for name, value in self._properties.items()}
        # Not file:PATH, because file: begins the URI of a warehouse.
        properties = {name: resolve_secret(text) if text.startswith("env:") else text for name, text in given.items()}
        with self._explained("ask the catalog"):
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
        errors = (OSError, pa.ArrowException, RESTError, CommitFailedException, ValueError)
        return explained(self.name, action, self._identifier, *errors)


def _path(location: str, file: str) -> str:
    return f"{location.rstrip('/')}/data/{file}"


@contextmanager
def _new_file(io: Any, path: str) -> Iterator[Any]:
    """A stream to a new file, which is on the disk behind the block where the disk is this machine's."""
    with io.new_output(path).create() as stream:
        yield stream
    if path.startswith(("file:", "/")):
        sync(path.removeprefix("file://").removeprefix("file:"))
