"""The sink ``sql``: one transaction of a relational database inserts all rows of a batch, and records the batch.

Tasks stage their rows beside the checkpoint. The driver inserts them before the batch is decided, so that a row that
the database refuses aborts the batch, and commits that transaction after the decision. A transaction that ended before
that is repeated from the staged rows. Executors need neither SQLAlchemy nor a way to the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from wallaroo_spark.errors import SinkError
from wallaroo_spark.extras import needed_by
from wallaroo_spark.options import is_reference
from wallaroo_spark.settings import function_takes_settings, takes_settings
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import SqlSettings
from wallaroo_spark.sinks.stores.staged_rows import StagedSink
from wallaroo_spark.sinks.stores.table_rows import check_text, unwritable
from wallaroo_spark.sinks.writer import BatchWriter, transactional

if TYPE_CHECKING:
    from wallaroo_spark.sinks.stores.sql.table import InsertedBatch, SqlTable


@function_takes_settings(SqlSettings)
def sql(settings: SqlSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a table of a relational database, as :class:`SqlSink`."""
    sink = SqlSink(**vars(settings))
    table = sink.table()
    if not is_reference(settings.url):
        # A URL that cannot work is known before the query starts. A secret may be there only later.
        table.engine()
    return transactional(sink, checkpoint=settings.checkpoint)


class SqlSink(StagedSink):
    """Inserts rows into a table of a database that SQLAlchemy knows, columns by name.

    It is ``PreCommitting``. Raises :class:`ConfigurationError` for settings that cannot work, and
    :class:`PackageMissingError` without SQLAlchemy or the database's driver package; methods raise :class:`SinkError`.
    """

    @takes_settings(SqlSettings)
    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings.name, settings.checkpoint)
        self._settings = settings
        self._inserted: InsertedBatch | None = None

    def __repr__(self) -> str:
        return f"SqlSink(table={self._settings.table!r}, name={self.name!r})"

    def table(self) -> SqlTable:
        """The table in the database. Raises :class:`PackageMissingError` without SQLAlchemy."""
        with needed_by("wallaroo_spark.sinks.sql", "sql"):
            from wallaroo_spark.sinks.stores.sql.table import SqlTable
        return SqlTable(self._settings)

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Stage the rows beside the checkpoint, after the checks that need no database."""
        return self._stage.write(transaction, map(self._checked, rows))

    def _checked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        where = f"sink {self.name}"
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if problem := unwritable(name, column.type):
                raise SinkError(f"{where}: {problem}", code="sink-columns", column=name)
            check_text(column, name, where)
        return rows

    @contextmanager
    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> Iterator[None]:
        """Insert the rows of the batch in a transaction that stays open. The database checks all its constraints."""
        if not any(one.rows for one in prepared):
            yield
            return
        with self._insert(batch, prepared) as inserted:
            if inserted.there:
                raise SinkError(
                    f"sink {self.name}: table {self._settings.table} has batch {batch} already, as its table "
                    "wallaroo_batches says: another driver has delivered it, or the query's checkpoint is older than "
                    "the table; start the query with the newest checkpoint, or give it another name= to write these "
                    "rows again",
                    code="sink-batch-unknown",
                    batch=batch,
                )
            self._inserted = inserted
            try:
                yield
            finally:
                self._inserted = None

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Commit the open transaction, or insert the rows again, unless the table has the batch."""
        committed = self._inserted is not None and self._inserted.try_to_commit()
        if not committed and any(one.rows for one in prepared):
            with self._insert(batch, prepared) as inserted:
                inserted.commit()
        self._stage.clear(batch)

    def _insert(self, batch: int, prepared: Sequence[Prepared]) -> AbstractContextManager[InsertedBatch]:
        return self.table().insert(batch, self._stage.identity(), self._stage.read(prepared))
