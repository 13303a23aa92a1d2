"""The sink ``postgres``: with PostgreSQL's two-phase commit, or with staging tables that one transaction moves.

The rows are moved before the batch is decided, so that a row that the table refuses aborts the batch, and that
transaction is committed after the decision. Each transaction of the sink inserts a row into the table
``wallaroo_commits``, in the same PostgreSQL transaction that makes its rows visible. So a repeated commit finds that
row, and can be distinguished from one that was rolled back. Rows are copied as CSV, after a check that the table takes
their columns.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, LiteralString

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from pyarrow import csv

from wallaroo_spark.errors import ConfigurationError, SinkError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import function_takes_settings, rows, takes_settings
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import AUTO, IDEMPOTENT, TWO_PHASE, PostgresSettings, PostgresWriterSettings
from wallaroo_spark.sinks.stores.staged_rows import StagedRows, check_newer
from wallaroo_spark.sinks.stores.table_rows import TableColumn, check_columns, is_binary, unwritable
from wallaroo_spark.sinks.writer import BatchWriter, transactional
from wallaroo_spark.steps import SinkStep, passed

log = one_line("wallaroo_spark.sinks")

_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), dtype=np.uint16)
# COPY reads an empty field without quotes as NULL, and Arrow writes every text in quotes.
_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="needed")


def _misfit(name: str, kind: pa.DataType, target: str) -> str:
    """The reason why an Arrow type does not fit a PostgreSQL type; empty if it may fit. COPY finds other misfits."""
    if is_binary(kind) != (target == "bytea") and not pa.types.is_null(kind):
        return f"column {name} is {kind} in the rows and {target} in the table; binary needs bytea, and bytea binary"
    return unwritable(name, kind)


def csv_of(rows: pa.RecordBatch) -> bytes:
    """Rows as CSV without a header, in UTF-8. Timestamps are in UTC, bytes in PostgreSQL's hex format."""
    columns = [_plain(column) for column in rows.columns]
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(columns, names=rows.schema.names), sink, _OPTIONS)
    return bytes(sink.getvalue())


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if is_binary(kind):
        return hex_of(column)
    if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"):
        return column.cast(pa.timestamp(kind.unit, "UTC"))
    if kind in (pa.string_view(), pa.float16()):
        return column.cast(pa.float32() if kind == pa.float16() else pa.string())
    return column


def hex_of(column: pa.Array) -> pa.Array:
    r"""Binary values as text: ``\x`` and two hexadecimal digits for each byte; null stays null."""
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    raw = np.frombuffer(data or b"", dtype=np.uint8)[ends[0] : ends[-1]]
    digits = pa.LargeStringArray.from_buffers(len(column), pa.py_buffer((ends - ends[0]) * 2), pa.py_buffer(_HEX[raw]))
    kind = pa.large_string()
    text = pc.binary_join_element_wise(pa.scalar("\\x", kind), digits, pa.scalar("", kind))
    return pc.if_else(column.is_valid(), text, pa.scalar(None, kind))


_COMMITS = "wallaroo_commits"
_STAGING = "wallaroo_stage_"
_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Settings of libpq that find a lost server after a minute (30 s and three times 10 s). A choice; the dsn overrides it.
"""
KEEP = 100
"""Number of batches of a sink whose rows in ``wallaroo_commits`` are kept: as many as in the decision log."""

_CREATE = """CREATE TABLE IF NOT EXISTS {} (
    transaction text PRIMARY KEY, sink text NOT NULL, batch bigint NOT NULL, rows bigint NOT NULL,
    prepared_at timestamptz NOT NULL DEFAULT now())"""
_ADVANCE = """INSERT INTO {} AS known (transaction, sink, batch, rows) VALUES (%s, %s, %s, 0)
    ON CONFLICT (transaction) DO UPDATE SET batch = greatest(known.batch, excluded.batch)"""
"""Records the newest batch of a checkpoint, in a row whose name no transaction and no sink has."""
_COLUMNS = """
SELECT attname, format_type(atttypid, NULL), attnotnull AND NOT atthasdef AND attidentity = '',
       attgenerated = '' AND attidentity <> 'a'
FROM pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_NAMED = """
SELECT nspname, relname
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = %s::oid"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_STAGED = """
SELECT obj_description(oid, 'pg_class') FROM pg_class
WHERE relnamespace = %s::regnamespace AND relkind = 'r' AND starts_with(relname, %s)"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


@dataclass(frozen=True)
class _Target:
    """The table that the rows go to, as PostgreSQL's catalog has it."""

    oid: int
    """The table's object id."""
    schema: str
    name: str
    """Its name, without quotes."""

    @property
    def quoted(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def commits(self) -> sql.Identifier:
        return sql.Identifier(self.schema, _COMMITS)

    def staging(self, transaction: Transaction) -> sql.Identifier:
        """A transaction's staging table. Its name is a digest, to be short; its comment is the transaction's id."""
        digest = hashlib.sha256(transaction.id.encode()).hexdigest()[:40]
        return sql.Identifier(self.schema, _STAGING + digest)


@function_takes_settings(PostgresWriterSettings)
def postgres(settings: PostgresWriterSettings) -> BatchWriter:
    """A ``foreachBatch`` writer to a table of PostgreSQL, as :class:`PostgresSink`."""
    own = {one.name: getattr(settings, one.name) for one in rows(PostgresSettings)}
    sink = PostgresSink(**own).of_checkpoint(settings.checkpoint)
    return transactional(sink, checkpoint=settings.checkpoint)


class PostgresSink:
    """Inserts rows into a table, columns by name.

    Raises :class:`ConfigurationError` for settings that cannot work; methods raise :class:`SinkError`.
    """

    @takes_settings(PostgresSettings)
    def __init__(self, settings: PostgresSettings) -> None:
        self.name = settings.name
        self._dsn, self._table, self._mode = settings.dsn, settings.table, settings.mode
        self._lock_timeout, self._timeout = settings.lock_timeout, settings.timeout
        self._moved: _Connection | None = None
        self._stage: StagedRows | None = None

    def __repr__(self) -> str:
        return f"PostgresSink(table={self._table!r}, name={self.name!r}, mode={self._mode!r})"

    def of_checkpoint(self, checkpoint: str) -> PostgresSink:
        """Return this sink, which from now on records the newest batch of this checkpoint, and takes no older one."""
        self._stage = StagedRows(checkpoint, self.name)
        return self

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        """Copy the rows into the table and prepare that, or copy them into a staging table and commit that."""
        with self._connected(f"prepare {transaction.id}") as connection:
            target, mode = self._target(connection), self._mode_of(connection)
            pieces = (piece for piece in rows if piece.num_rows)
            first = next(pieces, None)
            if first is None:
                return Prepared(transaction, 0)
            names = list(first.schema.names)
            columns = [TableColumn[str](*row) for row in connection.execute(_COLUMNS, (target.oid,))]
            check_columns(first.schema, self._table, columns, _misfit)
            if mode == TWO_PHASE:
                into = target.quoted
            else:
                into = target.staging(transaction)
                self._make_staging(connection, target, into, transaction)
            copied = _copy(connection, into, names, itertools.chain([first], pieces))
            if mode == TWO_PHASE:
                self._note(connection, target, transaction, copied)
                connection.execute(_sql("PREPARE TRANSACTION {}", sql.Literal(transaction.id)))
            connection.commit()
        return Prepared(transaction, copied, {"mode": mode, "columns": names})

    @contextmanager
    def pre_commit(self, batch: int, prepared: Sequence[Prepared]) -> Iterator[None]:
        """Move the staged rows in a transaction that stays open, and check all the table's constraints.

        A batch that the table has already is refused.
        """
        if any(one.rows for one in prepared):
            self._check_newer(batch)
        staged = _staged(prepared)
        if not staged:
            yield
            return
        with self._connected(f"take batch {batch}") as connection:
            # The successor of a driver that hangs here waits for its locks.
            connection.execute(_sql("SET idle_in_transaction_session_timeout TO {}", self._longest_lock()))
            self._move(connection, self._target(connection), staged)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            self._moved = connection
            try:
                yield
            finally:
                self._moved = None
                with suppress(psycopg.Error):
                    connection.rollback()

    def commit(self, batch: int, prepared: Sequence[Prepared]) -> None:
        """Commit the prepared transactions and the moved rows, except those that ``wallaroo_commits`` has."""
        given, staged = [one for one in prepared if one.rows], _staged(prepared)
        committed = self._moved is not None and _try_to_commit(self._moved)
        with self._connected(f"commit batch {batch}") as connection:
            target = self._target(connection)
            if staged and not committed:
                self._move(connection, target, staged)
                connection.commit()
            connection.autocommit = True
            for one in given:
                if one.detail["mode"] == TWO_PHASE:
                    self._commit_prepared(connection, target, one)
                    passed(SinkStep.HALF_COMMITTED)
            if given and self._stage is not None:
                name = f"{self.name}/{self._stage.identity()}"
                connection.execute(_sql(_ADVANCE, target.commits), (name, name, batch))
            done = {one.transaction for one in given}
            left = [one for one in self._found(connection, target) if one.batch <= batch and one not in done]
            self._abort(connection, target, left)
            old = _sql("DELETE FROM {} WHERE sink = %s AND batch < %s", target.commits)
            connection.execute(old, (self.name, batch - KEEP))

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """Roll back prepared transactions, and drop staging tables."""
        with self._connected("abort") as connection:
            target = self._target(connection)
            connection.autocommit = True
            self._abort(connection, target, transactions)

    def recover(self) -> Sequence[Transaction]:
        """This sink's transactions that are prepared or staged."""
        with self._connected("recover") as connection:
            return self._found(connection, self._target(connection))

    def _check_newer(self, batch: int) -> None:
        if self._stage is not None:
            with self._connected("find the newest batch") as connection:
                newest = _sql("SELECT batch FROM {} WHERE transaction = %s", self._target(connection).commits)
                found = connection.execute(newest, (f"{self.name}/{self._stage.identity()}",)).fetchone()
            check_newer(f"sink {self.name}: table {self._table}", found[0] if found else -1, batch)

    def _found(self, connection: _Connection, target: _Target) -> list[Transaction]:
        schema = sql.Identifier(target.schema).as_string(connection)
        texts = [*connection.execute(_PREPARED), *connection.execute(_STAGED, (schema, _STAGING))]
        found = (Transaction.parse(text or "") for (text,) in texts)
        return [one for one in found if one is not None and one.sink == self.name]

    def _abort(self, connection: _Connection, target: _Target, transactions: Iterable[Transaction]) -> None:
        for transaction in transactions:
            try:
                connection.execute(_sql("ROLLBACK PREPARED {}", sql.Literal(transaction.id)))
            except psycopg.errors.UndefinedObject:
                connection.execute(_sql("DROP TABLE IF EXISTS {}", target.staging(transaction)))

    def _commit_prepared(self, connection: _Connection, target: _Target, one: Prepared) -> None:
        try:
            connection.execute(_sql("COMMIT PREPARED {}", sql.Literal(one.transaction.id)))
        except psycopg.errors.UndefinedObject:
            if one.transaction.id not in _noted(connection, target, [one]):
                raise self._gone(one) from None

    def _move(self, connection: _Connection, target: _Target, moved: Sequence[Prepared]) -> None:
        """Move the rows out of the staging tables, in a transaction that the caller commits."""
        connection.execute(_LOCK, (f"wallaroo sink {self.name}",))
        done = _noted(connection, target, moved)
        for one in moved:
            if one.transaction.id in done:
                continue
            staging, columns = target.staging(one.transaction), _names(one.detail["columns"])
            move = _sql("INSERT INTO {} ({}) SELECT {} FROM {}", target.quoted, columns, columns, staging)
            try:
                rows = connection.execute(move).rowcount
            except psycopg.errors.UndefinedTable:
                raise self._gone(one) from None
            if rows != one.rows:
                raise self._gone(one, rows)
            connection.execute(_sql("DROP TABLE {}", staging))
            self._note(connection, target, one.transaction, rows)
            passed(SinkStep.HALF_COMMITTED)

    def _gone(self, one: Prepared, rows: int = 0) -> SinkError:
        return SinkError(
            f"sink {self.name}: {rows} of the {one.rows} rows of {one.transaction.id} are left to commit to table "
            f"{self._table}: the transaction was rolled back, its staging table dropped or the database restored; see "
            f"{_COMMITS}, and deliver the batch again from an older checkpoint",
            code="sink-rows-lost",
            transaction=one.transaction.id,
        )

    def _note(self, connection: _Connection, target: _Target, transaction: Transaction, rows: int) -> None:
        note = _sql("INSERT INTO {} (transaction, sink, batch, rows) VALUES (%s, %s, %s, %s)", target.commits)
        connection.execute(note, (transaction.id, self.name, transaction.batch, rows))

    def _make_staging(
        self, connection: _Connection, target: _Target, into: sql.Identifier, transaction: Transaction
    ) -> None:
        # A row that violates one of the target's constraints is refused here and not after the decision. Unique
        # constraints are not copied, because they depend on the rows of both tables.
        like = "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING IDENTITY INCLUDING GENERATED"
        connection.execute(_sql("CREATE TABLE {} (LIKE {} " + like + ")", into, target.quoted))
        connection.execute(_sql("COMMENT ON TABLE {} IS {}", into, sql.Literal(transaction.id)))

    def _longest_lock(self) -> sql.Literal:
        """The limit of waits for locks, in milliseconds."""
        return sql.Literal(int(self._lock_timeout * 1000))

    def _mode_of(self, connection: _Connection) -> str:
        allowed = int(_one(connection, "SHOW max_prepared_transactions"))
        if self._mode == TWO_PHASE and not allowed:
            raise SinkError(
                f"sink {self.name}: the server's max_prepared_transactions is 0, and mode two-phase needs it to be "
                "more than the partitions of a batch; set it, or use mode idempotent",
                code="sink-server-settings",
            )
        return self._mode if self._mode != AUTO else TWO_PHASE if allowed else IDEMPOTENT

    def _target(self, connection: _Connection) -> _Target:
        """The target table. The table of commits is created beside it if it is missing. No transaction remains open."""
        oid = _one(connection, "SELECT to_regclass(%s)::oid", self._table)
        if oid is None:
            raise SinkError(
                f"sink {self.name}: there is no table {self._table} in database {connection.info.dbname}; create it, "
                'or write table="schema.name" as in SQL',
                code="sink-target",
                table=self._table,
            )
        schema, name = connection.execute(_NAMED, (oid,)).fetchall()[0]
        target = _Target(oid, schema, name)
        present = _one(connection, "SELECT to_regclass(%s)", target.commits.as_string(connection))
        if present is None:
            # Two sessions that create the table at the same time would make one of them fail.
            connection.execute(_LOCK, (_COMMITS,))
            connection.execute(_sql(_CREATE, target.commits))
        connection.commit()
        return target

    @contextmanager
    def _connected(self, action: str) -> Iterator[_Connection]:
        try:
            given = psycopg.conninfo.conninfo_to_dict(resolve_secret(self._dsn))
            dsn = psycopg.conninfo.make_conninfo(
                "", **{**_KEEPALIVE, **given, "connect_timeout": max(2, int(self._timeout))}
            )
        except psycopg.ProgrammingError:
            # The parser's message may contain the password.
            raise ConfigurationError(
                f"sink {self.name}: the dsn cannot be read; expected postgresql://user:password@host:5432/database "
                "with special characters percent-encoded, or libpq's own form",
                code="url-invalid",
            ) from None
        try:
            with psycopg.connect(dsn, client_encoding="UTF8", application_name=f"wallaroo {self.name}") as connection:
                connection.execute("SET datestyle TO ISO; SET timezone TO 'UTC'")
                connection.execute(_sql("SET lock_timeout TO {}", self._longest_lock()))
                if _one(connection, "SHOW synchronous_commit") == "off":
                    connection.execute("SET synchronous_commit TO on")
                connection.commit()
                yield connection
        except psycopg.Error as error:
            reason = error.diag.message_primary or str(error)
            where = f" ({error.diag.context})" if error.diag.context else ""
            raise SinkError(
                f"sink {self.name}: PostgreSQL could not {action} in table {self._table}: {reason}{where}"
                f"{_remedy(error)}",
                code="sink-write-failed",
                table=self._table,
                sqlstate=error.sqlstate,
            ) from error


_Connection = psycopg.Connection[tuple[Any, ...]]


def _copy(connection: _Connection, into: sql.Identifier, names: Sequence[str], pieces: Iterable[pa.RecordBatch]) -> int:
    copied = 0
    with connection.cursor().copy(_sql("COPY {} ({}) FROM STDIN (FORMAT csv)", into, _names(names))) as copy:
        for piece in pieces:
            copy.write(csv_of(piece))
            copied += piece.num_rows
    return copied


def _staged(prepared: Sequence[Prepared]) -> list[Prepared]:
    """Those of the transactions whose rows are in staging tables."""
    return [one for one in prepared if one.rows and one.detail["mode"] == IDEMPOTENT]


def _try_to_commit(connection: _Connection) -> bool:
    """Commit, and return whether that is certain. If not, the transaction has ended in one way or the other."""
    try:
        connection.commit()
    except psycopg.Error as error:
        log.warning("the answer to a COMMIT is missing; the batch is looked for: %s", error)
        connection.close()
        return False
    return True


def _noted(connection: _Connection, target: _Target, prepared: Sequence[Prepared]) -> set[str]:
    """The ids of those of the transactions that are committed."""
    ask = _sql("SELECT transaction FROM {} WHERE transaction = ANY(%s)", target.commits)
    return {row[0] for row in connection.execute(ask, ([one.transaction.id for one in prepared],))}


def _one(connection: _Connection, query: LiteralString, *values: object) -> Any:
    row = connection.execute(query, values or None).fetchone()
    return row[0] if row else None


def _names(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _sql(text: LiteralString, *parts: sql.Composable) -> sql.Composed:
    return sql.SQL(text).format(*parts)


def _remedy(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.OutOfMemory) and "prepared" in str(error):
        return "; raise max_prepared_transactions, give batches fewer partitions, or use mode idempotent"
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "; another session holds a lock there: see pg_locks and pg_prepared_xacts, or raise lock_timeout"
    if isinstance(error, psycopg.OperationalError):
        return "; check that the server runs, its address, and the rights of the user"
    return ""
