"""The rows of a PostgreSQL table whose key grows: the key is the reference.

A row with a smaller key may be committed later than one with a greater key. So a key is passed only when no transaction
is left that may hold a smaller one: an INSERT locks the table before the default of its key is computed. The greatest
key is read, then the transactions that hold such a lock, and rows up to that key are read once those have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString

from wallaroo_spark.bridges.bridge import Bridge, Promise, unreadable
from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError, ReplayError, one_line
from wallaroo_spark.options import resolve_secret
from wallaroo_spark.settings import Kind, row, setting

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_log = one_line("wallaroo_spark.bridges")

GROUP_ROWS = 512
"""Rows of one query."""
TELL_SECONDS = 10.0
"""Seconds after which it is logged that a transaction is waited for."""
_POLL_SECONDS = 0.05

_WRITERS: LiteralString = """
SELECT virtualtransaction, pid FROM pg_locks
WHERE locktype = 'relation' AND granted AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND relation IN (SELECT %(table)s::regclass UNION SELECT relid FROM pg_partition_tree(%(table)s::regclass))
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""

_NUMBERED: LiteralString = """
SELECT seqrelid::regclass::text, pg_sequence_last_value(seqrelid::regclass) FROM pg_sequence
WHERE seqrelid = pg_get_serial_sequence(%(table)s, %(key)s)::regclass AND has_sequence_privilege(seqrelid, 'SELECT')
"""
"""The sequence of the key, where the user may read it, and its last number; none where it has given none."""

_KEY: LiteralString = """
SELECT format_type(a.atttypid, NULL),
  EXISTS (SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indpred IS NULL
          AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
  (SELECT s.seqcache FROM pg_sequence s WHERE s.seqrelid = pg_get_serial_sequence(%(table)s, %(key)s)::regclass),
  pg_is_in_recovery(), a.attnotnull,
  EXISTS (SELECT FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhparent
          WHERE h.inhparent = a.attrelid AND c.relkind = 'r')
FROM pg_attribute a WHERE a.attrelid = %(table)s::regclass AND a.attname = %(key)s AND NOT a.attisdropped
"""


def read_dsn(given: str) -> str:
    """The connection string that a setting names. Raises :class:`ConfigurationError`."""
    import psycopg

    dsn = resolve_secret(given)
    try:
        psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        raise unreadable("PostgreSQL", "postgresql://user:password@host:5432/database?sslmode=verify-full") from None
    return dsn


@dataclass(eq=False, kw_only=True)
class PostgresTableBridge(Bridge):
    """Send the rows of a PostgreSQL TABLE of the server at DSN, as JSON, in the order of a key that grows.

    DSN is postgresql://user:password@host/database, or env:NAME or file:PATH. Rows that are inserted are sent; changed
    and deleted rows are not noticed. The key must be a unique column of integers above 0 that the table's own default
    numbers (an identity column, serial), so that a row that is committed late is waited for.

    Examples:
        wallaroo-spark bridge postgres-table env:DSN public.orders --key id --workers host-a:7100
    """

    promise = Promise("the key", "nothing", "once")
    extra = "postgres"

    dsn: str = field(kw_only=False, metadata=row(Kind.TEXT, secret=True), repr=False)
    """The server."""
    table: str = field(kw_only=False, metadata=row(Kind.TEXT))
    """The table, as SQL writes its name."""
    key: str = setting("id", Kind.NAME)
    """The column that grows."""
    poll: float = setting(1.0, Kind.SECONDS, minimum=0.01)
    """Seconds between two looks for new rows."""

    @property
    def place(self) -> str:
        """The table."""
        return self.table

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream of the table."""
        yield [TableStream(self)]


class TableStream(BridgedStream):
    """The rows of a table."""

    def __init__(self, settings: PostgresTableBridge) -> None:
        import psycopg

        super().__init__(settings.table)
        # A table that is made again is not there for a moment; :meth:`_check` says what has become of it.
        self.passing = (OSError, psycopg.OperationalError, psycopg.errors.UndefinedTable)
        self._settings = settings
        self._names = {"table": settings.table, "key": settings.key}

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The rows behind a key."""
        import psycopg

        sql = psycopg.sql
        dsn = read_dsn(self._settings.dsn)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, client_encoding="utf8") as connection:
            await self._check(connection, psycopg)
            try:
                async with contextlib.aclosing(self._read(connection, sql, after)) as groups:
                    async for group in groups:
                        yield group
            except psycopg.errors.UndefinedTable:
                raise
            except psycopg.ProgrammingError as error:
                raise self._unfit(f"cannot be read: {error}") from error

    async def _read(
        self, connection: AsyncConnection, sql: Any, after: int | None
    ) -> AsyncGenerator[Sequence[Record], None]:
        # The name of the table is SQL, and was read as such by regclass above.
        key, table = sql.Identifier(self._settings.key), sql.SQL(self._settings.table)
        ends = sql.SQL("SELECT min({key}), max({key}) FROM {table}").format(key=key, table=table)
        rows = sql.SQL(
            "SELECT {key}, row_to_json(t)::text FROM {table} t WHERE {key} > %s AND {key} <= %s ORDER BY 1 LIMIT %s"
        ).format(key=key, table=table)
        while True:
            first, last = (await (await connection.execute(ends)).fetchall())[0]
            if after is None and first is not None and first < 1:
                raise self._unfit(f"has the key {first}, and a reference is above 0; use another column")
            yield []
            if last is None or last <= (after or 0):
                await self._check_numbers(connection, after or 0)
                await asyncio.sleep(self._settings.poll)
                continue
            await self._settled(connection)
            while found := await (await connection.execute(rows, (after or 0, last, GROUP_ROWS))).fetchall():
                yield [Record(number, text.encode()) for number, text in found]
                after = found[-1][0]
            after = last

    async def _check_numbers(self, connection: AsyncConnection, after: int) -> None:
        """Raise :class:`ReplayError` where the numbers of the keys have begun anew, below what is committed."""
        for sequence, number in await (await connection.execute(_NUMBERED, self._names)).fetchall():
            if number is not None and number < after:
                raise ReplayError(
                    f"table {self.name} has numbered its keys up to {number}, and the key {after} is committed: it was "
                    f"made again, or {sequence} was set back, so new rows have keys that are passed already; set the "
                    "sequence behind that key before rows are added, or use another --instance to send all rows anew",
                    code="source-changed",
                    source=self.name,
                    reference=after,
                )

    async def _settled(self, connection: AsyncConnection) -> None:
        """Wait for the end of the transactions that write to the table now."""
        began, told = time.monotonic(), False
        waited: set[Any] | None = None
        while True:
            found = set(await (await connection.execute(_WRITERS, self._names)).fetchall())
            waited = found if waited is None else waited & found
            if not waited:
                return
            if not told and time.monotonic() - began > TELL_SECONDS:
                told = True
                pids = ", ".join(sorted({str(pid) for _, pid in waited}))
                _log.warning("table %s: its rows wait for transactions that write to it (pid %s)", self.name, pids)
            await asyncio.sleep(_POLL_SECONDS)

    async def _check(self, connection: AsyncConnection, psycopg: Any) -> None:
        try:
            (facts,) = await (await connection.execute(_KEY, self._names)).fetchall()
        except psycopg.ProgrammingError as error:
            raise self._unfit(f"cannot be read: {error}") from error
        kind, unique, cache, standby, filled, inherited = facts
        if kind not in ("smallint", "integer", "bigint") or not unique or not filled:
            wrong = f"{'' if unique else ' and not unique'}{'' if filled else ' and may be NULL'}"
            raise self._unfit(
                f"has a column {self._settings.key!r} that is {kind}{wrong}; name a unique column of integers that is "
                "NOT NULL with --key, or use wallaroo-spark bridge postgres"
            )
        if inherited:
            raise self._unfit(
                "has tables that inherit from it, whose keys are not unique among all rows; make it a partitioned "
                "table, or use wallaroo-spark bridge postgres"
            )
        if (cache or 1) > 1:
            raise self._unfit(
                f"has a sequence with CACHE {cache}, so that keys may be committed long after greater ones; run ALTER "
                "SEQUENCE … CACHE 1, or use wallaroo-spark bridge postgres"
            )
        if standby:
            raise self._unfit("is on a standby, which does not know the writers; read from the primary server")

    def _unfit(self, problem: str) -> ConfigurationError:
        return ConfigurationError(f"table {self.name} {problem}", code="source-setup", source=self.name)
