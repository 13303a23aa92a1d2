"""A table of a relational database, into which one transaction inserts a batch and records it.

The table ``wallaroo_batches`` beside it has the newest batch of each sink and checkpoint. The transaction begins with
the update of that row: it locks the row, so that two drivers take turns, and finds a batch that is there already.

Databases change some values without an error: they round, cut and pad. Those are refused here, by the types of the
table's columns; what remains is refused by the database.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine.interfaces import ReflectedColumn
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from wallaroo_spark.errors import ConfigurationError, PackageMissingError, SinkError, bounded_reason, one_line
from wallaroo_spark.extras import missing
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.sinks.settings import SqlSettings
from wallaroo_spark.sinks.stores.sql.values import bind_type, misfit, values
from wallaroo_spark.sinks.stores.table_rows import TableColumn, check_columns
from wallaroo_spark.steps import SinkStep, passed

log = one_line("wallaroo_spark.sinks")

BATCHES = "wallaroo_batches"
_JDBC = {
    "mariadb": "mariadb+pymysql",
    "mysql": "mysql+pymysql",
    "oracle": "oracle+oracledb",
    "postgresql": "postgresql+psycopg",
    "sqlserver": "mssql+pyodbc",
}
"""The beginning of a URL of SQLAlchemy, by what follows ``jdbc:`` in JDBC."""
_MYSQL: dict[str, Any] = {"charset": "utf8mb4"}
_WAITS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "pymysql": (_MYSQL, ("connect_timeout", "read_timeout", "write_timeout")),
    "mysqldb": (_MYSQL, ("connect_timeout", "read_timeout", "write_timeout")),
    "psycopg": ({}, ("connect_timeout", "keepalives_idle")),
    "psycopg2": ({}, ("connect_timeout", "keepalives_idle")),
}
"""Arguments of a driver package's ``connect``, and the names of those that are the longest wait in seconds."""
_OF_MYSQL = (
    # Without a strict mode it cuts texts and numbers, and a 0 in a column with AUTO_INCREMENT becomes another number.
    # PyMySQL escapes bytes with backslashes in each mode.
    "SET SESSION sql_mode = CONCAT("
    "REPLACE(REPLACE(@@sql_mode, 'EMPTY_STRING_IS_NULL', ''), 'NO_BACKSLASH_ESCAPES', ''), "
    "',STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO'), "
    "time_zone = '+00:00', innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}",
)
_SESSION = {
    "mysql": _OF_MYSQL,
    "mariadb": _OF_MYSQL,
    "postgresql": (
        "SET timezone TO 'UTC'",
        "SET lock_timeout TO {milliseconds}",
        "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
    ),
    "sqlite": ("PRAGMA busy_timeout = {milliseconds}",),
}
"""The statements that begin a session, by the dialect."""
_CHECKS = {"postgresql": "SET CONSTRAINTS ALL IMMEDIATE"}
"""A statement that checks constraints which would be checked by COMMIT, by the dialect."""
_ENGINES = """
SELECT tables.table_name, tables.engine, engines.transactions
FROM information_schema.tables LEFT JOIN information_schema.engines ON engines.engine = tables.engine
WHERE tables.table_schema = COALESCE(:schema, DATABASE()) AND tables.table_name IN (:name, :batches)"""


@dataclass(frozen=True)
class InsertedBatch:
    """The open transaction of a batch; its rows are inserted, unless they are ``there`` already."""

    connection: sa.Connection
    there: bool
    """Whether the table had the batch before."""

    def commit(self) -> None:
        """Make the rows visible. Raises SQLAlchemyError; then they may be visible or not."""
        self.connection.commit()

    def try_to_commit(self) -> bool:
        """Commit, and return whether that is certain. If not, the transaction has ended in one way or the other."""
        try:
            self.commit()
        except SQLAlchemyError as error:
            log.warning("the answer to a COMMIT is missing; the batch is looked for: %s", _reason(error))
            self.connection.invalidate()
            return False
        return True


class SqlTable:
    """The table of a sink. Methods raise :class:`ConfigurationError` for a URL that cannot work."""

    def __init__(self, settings: SqlSettings) -> None:
        self._settings, self._sink, self._table = settings, settings.name, settings.table
        self._where = f"sink {settings.name}"
        schema, _, self._name = settings.table.rpartition(".")
        self._schema = schema or None
        self._batches = sa.Table(
            BATCHES,
            sa.MetaData(),
            sa.Column("sink", sa.String(64), primary_key=True),
            sa.Column("checkpoint", sa.String(64), primary_key=True),
            sa.Column("batch", sa.BigInteger, nullable=False),
            schema=self._schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    @contextmanager
    def insert(self, batch: int, identity: str, pieces: Iterable[pa.RecordBatch]) -> Iterator[InsertedBatch]:
        """Insert rows as a batch of the checkpoint with this identity, unless the table has the batch.

        The end of the context ends a transaction that was not committed. Raises :class:`SinkError`.
        """
        with self._connected(f"take batch {batch}") as connection:
            self._check_target(connection)
            there = not self._advance(connection, identity, batch)
            if not there:
                self._insert(connection, pieces)
            yield InsertedBatch(connection, there)

    def _check_target(self, connection: sa.Connection) -> None:
        if not sa.inspect(connection).has_table(self._name, self._schema):
            raise SinkError(
                f"{self._where}: there is no table {self._table} in the database; create it, or write "
                'table="schema.name"',
                code="sink-target",
                table=self._table,
            )
        self._make_batches(connection)
        if connection.dialect.name not in ("mysql", "mariadb"):
            return
        names = {"schema": self._schema, "name": self._name, "batches": BATCHES}
        found = {name: (engine, known) for name, engine, known in connection.execute(sa.text(_ENGINES), names)}
        for name in (self._name, BATCHES):
            engine, transactions = found.get(name, (None, None))
            if transactions != "YES":
                kind = f"a table of {engine}, which has" if engine else "a view, and may have"
                raise SinkError(
                    f"{self._where}: {name} is {kind} no transactions, so that a part of a batch could remain; use a "
                    "table of InnoDB (ALTER TABLE … ENGINE = InnoDB)",
                    code="sink-target",
                    table=name,
                )

    def _make_batches(self, connection: sa.Connection) -> None:
        if sa.inspect(connection).has_table(BATCHES, self._schema):
            return
        create = CreateTable(self._batches)
        try:
            connection.execute(create)
            connection.commit()
        except DBAPIError as error:
            connection.rollback()
            if not sa.inspect(connection).has_table(BATCHES, self._schema):
                statement = " ".join(str(create.compile(connection)).split())
                raise SinkError(
                    f"{self._where}: the table that records batches cannot be created: {_reason(error)}; let this user "
                    f"create tables, or run: {statement}",
                    code="sink-write-failed",
                    table=BATCHES,
                ) from None

    def _advance(self, connection: sa.Connection, identity: str, batch: int) -> bool:
        """Lock the checkpoint's row and set it to the batch; return False if it has the batch, or a newer one."""
        columns = self._batches.c
        own = sa.and_(columns.sink == self._sink, columns.checkpoint == identity)
        newest = sa.select(columns.batch).where(own)
        if connection.scalar(newest) is None:
            # Another driver may do the same; a row that is there can be locked.
            with suppress(IntegrityError):
                connection.execute(sa.insert(self._batches).values(sink=self._sink, checkpoint=identity, batch=-1))
                connection.commit()
        connection.rollback()
        advance = sa.update(self._batches).where(own, columns.batch < batch).values(batch=batch)
        if connection.execute(advance).rowcount == 1:
            return True
        found = connection.scalar(newest)
        if found is None or found < batch:
            raise SinkError(
                f"{self._where}: the row of this sink in {BATCHES} cannot be updated from {found} to {batch}; do not "
                "change that table while a query runs",
                code="sink-write-failed",
                table=BATCHES,
            )
        return False

    def _insert(self, connection: sa.Connection, pieces: Iterable[pa.RecordBatch]) -> None:
        target = sa.table(self._name, schema=self._schema)
        # Whoever alters the table has to wait from here on.
        connection.execute(sa.select(sa.text("1")).select_from(target).where(sa.text("1 = 0")))
        found = sa.inspect(connection).get_columns(self._name, self._schema)
        columns = [TableColumn(one["name"], one, _is_needed(one), _is_given(one)) for one in found]
        known = {one["name"]: one for one in found}
        for piece in pieces:
            check_columns(piece.schema, self._table, columns, misfit)
            names = piece.schema.names
            lists = [
                values(column, known[name], connection.dialect.name)
                for name, column in zip(names, piece.columns, strict=True)
            ]
            into = sa.table(
                self._name, *(sa.column(name, bind_type(known[name])) for name in names), schema=self._schema
            )
            rows = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
            if rows:
                connection.execute(sa.insert(into), rows)
            passed(SinkStep.HALF_COMMITTED)
        if connection.dialect.name in _CHECKS:
            connection.exec_driver_sql(_CHECKS[connection.dialect.name])

    @contextmanager
    def _connected(self, action: str) -> Iterator[sa.Connection]:
        engine, lock_timeout = self.engine(), self._settings.lock_timeout
        try:
            with engine.connect() as connection:
                level = connection.default_isolation_level
                if level:
                    # Some URLs make each statement a transaction of its own; this ends that in every driver package.
                    connection.execution_options(isolation_level=level)
                waits = {
                    "seconds": max(1, math.ceil(lock_timeout)),
                    "milliseconds": max(1, math.ceil(lock_timeout * 1000)),
                }
                for statement in _SESSION.get(connection.dialect.name, ()):
                    connection.exec_driver_sql(statement.format(**waits))
                connection.commit()
                try:
                    yield connection
                finally:
                    with suppress(SQLAlchemyError):
                        connection.rollback()
        except SQLAlchemyError as error:
            # The cause is not chained: its text may have the password.
            reason, password = _reason(error), engine.url.password
            reason = reason.replace(str(password), "***") if password else reason
            raise SinkError(
                f"{self._where}: the database could not {action} in table {self._table}: {reason}; check the rows, "
                "that the database runs, the rights of the user, and what other sessions have locked",
                code="sink-write-failed",
                table=self._table,
            ) from None

    def engine(self) -> sa.Engine:
        """The way to the database; nothing is connected yet."""
        text, longest = resolve_secret(self._settings.url), max(1, math.ceil(self._settings.timeout))
        jdbc = re.match(r"jdbc:(\w+):", text)
        scheme = _JDBC.get(jdbc[1], "dialect+driver") if jdbc else "mysql+pymysql"
        try:
            url = sa.make_url(text)
            settings, waits = _WAITS.get(url.get_driver_name(), ({}, ()))
            engine = sa.create_engine(
                url,
                poolclass=sa.NullPool,
                hide_parameters=True,
                connect_args={**settings, **dict.fromkeys(waits, longest)},
            )
        except ModuleNotFoundError as error:
            what = f"sinks.sql with a URL that begins with {url.drivername}"
            raise missing(error, what) or PackageMissingError(
                f"{what} needs {error.name}, which is not installed; install the package that has it where the driver "
                "runs, or name another one in the URL, such as mysql+pymysql",
                code="package-missing",
                missing=error.name,
            ) from error
        except (SQLAlchemyError, ValueError):
            # The error's text may contain the password.
            raise ConfigurationError(
                f"{self._where}: the URL cannot be read, or SQLAlchemy has no such dialect; "
                f"{'jdbc: is the form of Java; ' if jdbc else ''}expected {scheme}://user:password@host:port/database, "
                "with special characters of the password percent-encoded",
                code="url-invalid",
            ) from None
        if engine.dialect.is_async:
            raise ConfigurationError(
                f"{self._where}: {url.drivername} is for programs with an event loop; name another driver package, "
                "such as mysql+pymysql or postgresql+psycopg",
                code="url-invalid",
            )
        return engine


def _reason(error: SQLAlchemyError) -> str:
    """What the database or its driver package says."""
    return bounded_reason(str(error.orig if isinstance(error, DBAPIError) else error))


def _is_given(column: ReflectedColumn) -> bool:
    """Whether a row may have a value in a column."""
    identity = column.get("identity")
    return not column.get("computed") and not (identity and identity.get("always"))


def _is_needed(column: ReflectedColumn) -> bool:
    """Whether each row must have a value in a column."""
    made = column.get("default") is not None or "identity" in column or column.get("autoincrement") is True
    return not column["nullable"] and not made and _is_given(column)
