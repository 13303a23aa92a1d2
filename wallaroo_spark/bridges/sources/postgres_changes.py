"""The changes of PostgreSQL tables, from its log: logical replication, whose positions are the references."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wallaroo_spark.bridges.bridge import Bridge, Promise
from wallaroo_spark.bridges.sources.pgoutput import ChangeDecoder, lsn_of, lsn_text
from wallaroo_spark.bridges.sources.postgres_table import read_dsn
from wallaroo_spark.bridges.streams import BridgedStream
from wallaroo_spark.connector import Record
from wallaroo_spark.errors import ConfigurationError, ReplayError
from wallaroo_spark.event_loop import end_tasks
from wallaroo_spark.settings import Kind, row, setting

if TYPE_CHECKING:
    from psycopg import AsyncConnection

GROUP_ROWS = 512
"""Most changes that are handed on together."""
FEEDBACK_SECONDS = 10.0
"""Longest time between two messages to the server, which ends a connection after 60 s without one by default."""
_EPOCH_MICROS = 946_684_800_000_000
_END = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) - '0/0'::pg_lsn
"""

_PUBLISHED = """
SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s
UNION SELECT nspname, relname FROM pg_publication_rel JOIN pg_class c ON c.oid = prrelid
  JOIN pg_namespace n ON n.oid = relnamespace JOIN pg_publication p ON p.oid = prpubid WHERE pubname = %s
"""
"""The tables of a publication; a partitioned one is in the second half. It needs no right to them."""


@dataclass(eq=False, kw_only=True)
class PostgresBridge(Bridge):
    """Send the changes of PostgreSQL tables, as JSON, from the log of the server at DSN.

    DSN is postgresql://user:password@host/database, or env:NAME or file:PATH. The replication slot and the
    publication are made if they are missing; the changes since then are sent, in the order of their commits. The
    server needs wal_level = logical, and the user the right REPLICATION. A slot keeps the server's log until it is
    read: drop it when the bridge is given up, SELECT pg_drop_replication_slot('wallaroo').

    Examples:
        wallaroo-spark bridge postgres env:DSN --tables orders,items --workers host-a:7100
    """

    promise = Promise("place of the commit in the log (LSN), and the row in it", "the slot's place", "once")
    extra = "postgres"

    dsn: str = field(kw_only=False, metadata=row(Kind.TEXT, secret=True), repr=False)
    """The server."""
    tables: str = setting("", Kind.NAMES)
    """Tables of the publication, if the bridge makes it; one that is there must have them. Empty: all tables of the
    database."""
    slot: str = setting("wallaroo", Kind.NAME)
    """The replication slot, also the name of the stream."""
    publication: str = setting("wallaroo", Kind.NAME)
    """The publication."""

    @property
    def place(self) -> str:
        """The slot."""
        return self.slot

    async def streams(self) -> AsyncGenerator[Sequence[BridgedStream], None]:
        """The one stream of the slot."""
        yield [ChangesStream(self)]


class ChangesStream(BridgedStream):
    """The changes that a slot has."""

    def __init__(self, settings: PostgresBridge) -> None:
        import psycopg

        super().__init__(settings.slot)
        self.passing = (OSError, psycopg.OperationalError)
        self._settings = settings
        self._dsn = read_dsn(settings.dsn)
        self.decoded = 0
        """The reference of the last change that was read."""
        self._committed = 0
        self._acknowledged = asyncio.Event()

    async def acknowledge(self, reference: int) -> None:
        """Let the server forget the transactions in front of this one's."""
        self._committed = reference
        self._acknowledged.set()

    def read(self, after: int | None) -> AsyncIterator[Record]:
        """The changes behind the committed reference."""
        self._committed = after or 0
        return super().read(after)

    async def records(self, after: int | None) -> AsyncGenerator[Sequence[Record], None]:
        """The changes behind a reference. The last one that was sent, where the server is opened again: the committed
        one is another."""
        import psycopg

        self.decoded = after or 0
        await self._prepare(psycopg, after)
        replicating: dict[str, Any] = {"replication": "database", "client_encoding": "utf8"}
        connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, **replicating)
        telling: asyncio.Task[None] | None = None
        try:
            replication = _Replication(connection, self)
            replication.start(self._settings, lsn_of(after or 0))
            telling = asyncio.create_task(self._tell(replication))
            async for group in replication.groups(after or 0):
                yield group
        finally:
            if telling is not None:
                await end_tasks(telling)
            await connection.close()

    def confirmed(self, passed: int) -> int:
        """The place up to which the server may forget its log, when nothing before ``passed`` is still to be sent."""
        return passed if self._committed >= self.decoded and passed else lsn_of(self._committed)

    async def _tell(self, replication: _Replication) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FEEDBACK_SECONDS):
                    await self._acknowledged.wait()
            self._acknowledged.clear()
            replication.tell()

    async def _prepare(self, psycopg: Any, after: int | None) -> None:
        """Make what is missing. Raises :class:`ReplayError` when the slot is gone that has had committed changes."""
        settings, sql = self._settings, psycopg.sql
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:

            async def one(query: str, *values: object) -> Any:
                return (await (await connection.execute(query, values)).fetchone() or (None,))[0]

            level = await one("SHOW wal_level")
            if level != "logical":
                raise ConfigurationError(
                    f"PostgreSQL has wal_level = {level}, and logical replication needs logical; run ALTER SYSTEM SET "
                    "wal_level = logical, and restart the server",
                    code="source-setup",
                )
            try:
                await self._publish(connection, sql)
                end = await one(_END)
                if lsn_of(after or 0) > end:
                    raise ReplayError(
                        f"the log of the server ends at {lsn_text(int(end))}, and changes are committed up to "
                        f"{lsn_text(lsn_of(after or 0))}: it is another server, or an older copy of it; compare the "
                        "tables, then use another --instance to begin anew",
                        code="source-changed",
                        source=self.name,
                    )
                slot = await one(
                    "SELECT coalesce(wal_status, '') FROM pg_replication_slots WHERE slot_name = %s", settings.slot
                )
                if slot == "lost":
                    raise ReplayError(
                        f"the server has deleted its log in front of the replication slot {settings.slot!r} "
                        "(max_slot_wal_keep_size), so changes are lost; compare the tables, drop the slot, then use "
                        "another --slot to begin anew",
                        code="source-changed",
                        source=self.name,
                    )
                if slot is None:
                    if after:
                        raise ReplayError(
                            f"PostgreSQL has no replication slot {settings.slot!r} any more, and changes are committed "
                            f"up to {lsn_text(lsn_of(after))}: those since then are lost; compare the tables, then use "
                            "another --slot to begin anew",
                            code="source-changed",
                            source=self.name,
                        )
                    await one("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", settings.slot)
            except psycopg.ProgrammingError as error:
                raise ConfigurationError(
                    f"the publication {settings.publication!r} or the slot {settings.slot!r} cannot be made: "
                    f"{error}; give the right to the user of the bridge, or make them beforehand",
                    code="source-setup",
                ) from error

    async def _publish(self, connection: AsyncConnection, sql: Any) -> None:
        """Make the publication. Raises :class:`ConfigurationError` for one that is there and lacks a table."""
        name = self._settings.publication
        tables = [one.strip().split(".") for one in self._settings.tables.split(",") if one]
        every = await connection.execute("SELECT puballtables FROM pg_publication WHERE pubname = %s", (name,))
        found = await every.fetchone()
        if found is None:
            listed = sql.SQL(", ").join(sql.Identifier(*one) for one in tables)
            of = sql.SQL("TABLE {}").format(listed) if tables else sql.SQL("ALL TABLES")
            await connection.execute(sql.SQL("CREATE PUBLICATION {} FOR {}").format(sql.Identifier(name), of))
        elif found != (True,):
            there = await (await connection.execute(_PUBLISHED, (name, name))).fetchall()
            for one in tables:
                # A name without a schema may be in any, because the user need not have a right to look it up.
                if not any(list(full)[-len(one) :] == one for full in there):
                    raise ConfigurationError(
                        f"the publication {name!r} is there and lacks the table {'.'.join(one)}, whose changes would "
                        "be missing; run ALTER PUBLICATION … ADD TABLE …, or give another --publication",
                        code="source-setup",
                    )


class _Replication:
    """One connection that replicates."""

    def __init__(self, connection: AsyncConnection, stream: ChangesStream) -> None:
        self._link: Any = connection.pgconn
        self._stream = stream
        self._decoder = ChangeDecoder()
        self._passed = 0

    def start(self, settings: PostgresBridge, lsn: int) -> None:
        """Ask for the changes from a place on. Raises :class:`ConfigurationError` where the server refuses."""
        import psycopg

        publication = settings.publication.replace('"', '""').replace("'", "''")
        slot = settings.slot.replace('"', '""')
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} '
            f"(proto_version '1', publication_names '\"{publication}\"')"
        )
        result = self._link.exec_(command.encode())
        if result.status != psycopg.pq.ExecStatus.COPY_BOTH:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
        self._link.nonblocking = 1

    def tell(self) -> None:
        """Tell the server what is committed."""
        lsn = self._stream.confirmed(0 if self._decoder.within else self._passed)
        now = time.time_ns() // 1000 - _EPOCH_MICROS
        # Received, made durable, applied: the first may not be behind the others.
        self._link.put_copy_data(struct.pack(">cQQQqB", b"r", lsn, lsn, lsn, now, 0))
        self._link.flush()

    async def groups(self, after: int) -> AsyncGenerator[list[Record], None]:
        """The changes behind a reference, as they come."""
        group: list[Record] = []
        while True:
            size, data = self._link.get_copy_data(1)
            if size < 0:
                import psycopg

                raise psycopg.OperationalError("the server has ended the replication")
            if size:
                group += self._taken(bytes(data), after)
            if len(group) >= GROUP_ROWS or not size:
                yield group
                group = []
            if not size:
                await self._readable()

    def _taken(self, data: bytes, after: int) -> list[Record]:
        if data[:1] == b"k":
            self._passed, _, wanted = struct.unpack(">QqB", data[1:])
            if wanted:
                self.tell()
            return []
        try:
            changes = self._decoder.decode(data[25:])
        except OverflowError as error:
            raise ConfigurationError(
                f"{error} has no reference: a transaction has at most 2 million changes, and the log 256 TiB; commit "
                "large loads in parts, and drop the slot to begin behind this one",
                code="id-out-of-range",
            ) from None
        found = [Record(one.reference, one.body, one.time, one.key) for one in changes if one.reference > after]
        if found:
            self._stream.decoded = changes[-1].reference
        return found

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._link.socket, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._link.socket)
        self._link.consume_input()
