"""Rows of tables: the columns that a table of a database takes; rows as Parquet files of a table, with the types that
tables have and its partitions; and what the sinks of tables have in common."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from wallaroo_spark.errors import SinkError
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.stores.files import gathered
from wallaroo_spark.sinks.stores.staged_rows import StagedSink, check_newer

T = TypeVar("T")

_STRANGE = set(" ,;{}()\n\t=")
"""Characters that readers of tables do not accept in names of columns."""
_PLAIN = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_date32,
)
_IN_PARTITIONS = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_date32, pa.types.is_string)
MOST_OPEN = 200
"""The most files that a task writes at the same time. A choice: systems let a process open 1024 files or more."""


@dataclass(frozen=True)
class TableColumn(Generic[T]):
    """A column of a table in a database."""

    name: str
    type: T
    """Its type, in the form in which the database's client has it."""
    needed: bool
    """Whether every row must have a value: the column is NOT NULL and has no default."""
    given: bool
    """Whether a row may have a value: the database does not generate the column's values."""


def check_columns(
    schema: pa.Schema, table: str, columns: Sequence[TableColumn[T]], misfit: Callable[[str, pa.DataType, T], str]
) -> None:
    """Raise :class:`SinkError` unless a table takes rows of this schema; columns are matched by name.

    ``misfit`` returns the reason why a column's type in the rows does not fit the one in the table, or nothing.
    """
    known = {column.name: column for column in columns}
    for name, kind in zip(schema.names, schema.types, strict=True):
        problem = ""
        if name not in known:
            problem = f"the table has no column {name}; it has {', '.join(known)}: select and rename the rows' columns"
        elif schema.names.count(name) > 1:
            problem = f"the rows have {schema.names.count(name)} columns {name}; rename all but one"
        elif not known[name].given:
            problem = f"the database generates the values of column {name}; leave it out of the rows"
        else:
            problem = misfit(name, kind, known[name].type)
        if problem:
            raise SinkError(f"table {table}: {problem}", code="sink-columns", table=table, column=name)
    for column in columns:
        if column.needed and column.name not in schema.names:
            raise SinkError(
                f"table {table}: column {column.name} is NOT NULL and has no default, and the rows have no such "
                "column; add it to the rows, or give it a default",
                code="sink-columns",
                table=table,
                column=column.name,
            )


def is_binary(kind: pa.DataType) -> bool:
    """Whether values of a type are bytes."""
    return any(check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))


def unwritable(name: str, kind: pa.DataType) -> str:
    """The reason why no column of a database takes an Arrow type; empty for other types."""
    if pa.types.is_nested(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return f"column {name} is {kind}, which cannot be written; turn it into a string, for instance with to_json"
    return ""


@dataclass(frozen=True)
class TableShape:
    """The columns of a table, and of these the ones that divide it. Picklable."""

    schema: pa.Schema
    """Columns with the types of :func:`plain_schema`."""
    partitions: tuple[str, ...] = ()


@dataclass
class WrittenFile:
    """A Parquet file, with the values of the partitioning columns of all its rows."""

    path: str
    values: dict[str, Any]
    rows: int = 0
    footers: list[Any] = field(default_factory=list)
    """What Parquet says of the file, once it is complete."""


def plain_schema(schema: pa.Schema, where: str, *, of_table: bool = False) -> pa.Schema:
    """The schema with types as tables have them, without what they say of nulls within a value.

    Raises :class:`SinkError` for a type or a name that the sinks do not write; with ``of_table`` it is the table's.
    """
    seen: set[str] = set()
    fields = []
    for one in schema:
        if one.name.lower() in seen or not one.name or _STRANGE & set(one.name):
            remedy = "write to another table" if of_table else "rename it"
            raise _refused(
                where, one.name, f"is there twice, is empty or has a blank or one of ,;{{}}()= in it: {remedy}"
            )
        seen.add(one.name.lower())
        unknown = "this sink does not write: write to another table" if of_table else "tables do not have: cast it"
        fields.append(pa.field(one.name, _plain(one.type, one.name, where, unknown), one.nullable))
    return pa.schema(fields)


def fitting(piece: pa.RecordBatch, shape: TableShape, where: str) -> pa.Table:
    """Rows in the order and with the types of a table's columns. Raises :class:`SinkError` for rows that do not fit.

    A column that the rows lack is left out, which readers take for null.
    """
    found = plain_schema(piece.schema, where)
    known = {one.name: one for one in shape.schema}
    for one in found:
        if one.name not in known:
            raise _refused(
                where, one.name, f"is not in the table, which has {', '.join(known)}: add it there, or select others"
            )
        if one.type != known[one.name].type:
            raise _refused(where, one.name, f"is {one.type}, and {known[one.name].type} in the table: cast it")
    for one in shape.schema:
        if not one.nullable and (one.name not in found.names or piece.column(one.name).null_count):
            raise _refused(where, one.name, "may not be null in the table, and a row has no value for it")
    kept = [one for one in shape.schema if one.name in found.names]
    if all(one.name in shape.partitions for one in kept):
        raise _refused(where, ", ".join(found.names), "divides the table, and the rows have no other column")
    for one in kept:
        check_text(piece.column(one.name), one.name, where)
    return pa.table([piece.column(one.name).cast(one.type) for one in kept], pa.schema(kept))


def check_text(column: pa.Array, name: str, where: str) -> None:
    """Raise :class:`SinkError` for a text that is no UTF-8: Spark does not check it, and readers of the file fail."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _refused(
            where, name, f"has a text that is no UTF-8 ({error}): convert it with make_valid_utf8, or cast it to binary"
        ) from error


def check_partitions(shape: TableShape, where: str) -> None:
    """Raise :class:`SinkError` where a partitioning column is missing, repeated, or of a type that has no one text."""
    for name in shape.partitions:
        if shape.partitions.count(name) > 1:
            raise _refused(where, name, "shall divide the table twice: name it once")
        if name not in shape.schema.names:
            raise _refused(where, name, f"shall divide the table, and is none of {', '.join(shape.schema.names)}")
        kind = shape.schema.field(name).type
        if not any(check(kind) for check in _IN_PARTITIONS):
            raise _refused(where, name, f"is {kind}, and only strings, integers, dates and booleans divide a table")


def write_files(
    rows: Iterable[pa.RecordBatch],
    shape: TableShape,
    where: str,
    open_file: Callable[[int], tuple[str, Any]],
    *,
    stored: pa.Schema | None = None,
) -> list[WrittenFile]:
    """Write rows to Parquet files, each for one value of the partitioning columns, in the order of the rows.

    ``open_file`` is called with 0, 1, … and returns the path of a new file and a context that yields its stream. Files
    contain the partitioning columns where there is ``stored``: the columns with what files say of them, such as ids.
    """
    written: list[WrittenFile] = []
    found: dict[tuple[Any, ...], tuple[WrittenFile, Any]] = {}
    with contextlib.ExitStack() as stack:
        for table in gathered(_batches(rows, shape, where)):
            for values, some in _divided(table, shape.partitions, where):
                if stored is None:
                    kept = some.drop_columns(list(shape.partitions))
                else:
                    kept = some.cast(pa.schema([stored.field(name) for name in some.column_names]))
                if values not in found:
                    if len(found) == MOST_OPEN:
                        stack.close()
                        found.clear()
                    path, context = open_file(len(written))
                    one = WrittenFile(path, dict(zip(shape.partitions, values, strict=True)))
                    written.append(one)
                    stream = stack.enter_context(context)
                    writer = parquet.ParquetWriter(
                        stream, kept.schema, store_schema=False, metadata_collector=one.footers
                    )
                    found[values] = one, stack.enter_context(writer)
                one, writer = found[values]
                writer.write_table(kept)
                one.rows += kept.num_rows
    return written


def _batches(rows: Iterable[pa.RecordBatch], shape: TableShape, where: str) -> Iterator[pa.RecordBatch]:
    for piece in filter(len, rows):
        yield from fitting(piece, shape, where).to_batches()


def _divided(table: pa.Table, columns: tuple[str, ...], where: str) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each value of the columns, with these values."""
    if not columns:
        yield (), table
        return
    try:
        divided = table.group_by(list(columns)).aggregate([]).to_pylist()
    except OverflowError as error:
        raise _refused(
            where,
            ", ".join(columns),
            "divides the table, and has a date before the year 1 or behind 9999: leave it out",
        ) from error
    for row in divided:
        mask: Any = None
        for name in columns:
            column, value = table.column(name), row[name]
            same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            mask = same if mask is None else pc.and_(mask, same)
        yield tuple(row[name] for name in columns), table.filter(mask)


def _plain(kind: pa.DataType, name: str, where: str, unknown: str) -> pa.DataType:
    if any(check(kind) for check in _PLAIN):
        return kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([one.with_nullable(True) for one in plain_schema(pa.schema(list(kind)), where)])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _plain(kind.value_type, name, where, unknown)))
    if pa.types.is_map(kind):
        key, item = (_plain(one, name, where, unknown) for one in (kind.key_type, kind.item_type))
        return pa.map_(key, item)
    raise _refused(where, name, f"is of type {kind}, which {unknown}")


class TableSink(StagedSink, ABC, Generic[T]):
    """A sink on a table ``T``, which tells the newest batch that this sink has added.

    Tasks write files that the table does not know, and an empty file beside the checkpoint for each transaction; the
    commit adds the files. Methods raise :class:`SinkError`.
    """

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Add the files of the batch to the table, unless it has them, and delete those of other attempts."""
        given = [one for one in prepared if one.rows]
        if given:
            self._add(batch, given)
        done = {one.transaction for one in prepared}
        left = [one for one in self._stage.found() if one.batch <= batch]
        self.abort([one for one in left if one not in done])
        self._stage.drop(left)

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Delete the files of transactions, except where the table may know them: its own cleaning deletes those.

        A checkpoint that is older than the table may list transactions as undecided that were committed since.
        """
        if not transactions:
            return
        table = self._table()
        newest = self._newest(table)
        with self._explained("abort"):
            for transaction in transactions:
                number = 0
                while transaction.batch > newest and self._remove(table, self._file(transaction, number)):
                    number += 1
        super().abort(transactions)

    def _begin(self, transaction: Transaction, newest: int) -> None:
        """Note a transaction beside the checkpoint, unless the table has its batch already."""
        check_newer(self._where, newest, transaction.batch)
        self._stage.write(transaction, ())

    def _file(self, transaction: Transaction, number: int) -> str:
        own = f"{self.name}-{self._stage.identity()[:8]}"
        return f"{own}.{transaction.batch}.{transaction.partition}.{transaction.attempt}.{number}.parquet"

    @property
    @abstractmethod
    def _where(self) -> str:
        """The sink and its table, as errors name them."""

    @abstractmethod
    def _explained(self, action: str) -> AbstractContextManager[None]:
        """Raise the errors of the table as :class:`SinkError`."""

    @abstractmethod
    def _table(self) -> T:
        """The table as it is now."""

    @abstractmethod
    def _newest(self, table: T) -> int:
        """The newest batch of this sink in the table; -1 without one."""

    @abstractmethod
    def _add(self, batch: int, given: Sequence[Prepared]) -> None:
        """Add the files of a batch to the table and note the batch there, both or none, unless it is noted."""

    @abstractmethod
    def _remove(self, table: T, file: str) -> bool:
        """Delete a file of a transaction; return whether it was there."""


def _refused(where: str, column: str, why: str) -> SinkError:
    return SinkError(f"{where}: column {column} {why}", code="sink-columns", column=column)
