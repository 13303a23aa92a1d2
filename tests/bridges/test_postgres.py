"""PostgreSQL's tables: their changes from the log, and rows by a growing key, from a real server."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from proving.servers.postgres import PostgresServer
from tests.bridges.support import Bridging, refused
from tests.waiting import SECONDS, eventually
from wallaroo_spark.testing import FakeWorker


class Database:
    """A table of the test's own, and a slot of its own."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.run(f"CREATE TABLE {self.name} (id bigserial PRIMARY KEY, value text)")

    def run(self, query: str, *values: object) -> list[Any]:
        cursor = self.connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []

    def insert(self, first: int, last: int) -> None:
        """Rows with the texts of numbers, of which each is a transaction."""
        for number in range(first, last):
            self.run(f"INSERT INTO {self.name} (value) VALUES (%s)", str(number))

    def slot(self) -> list[Any]:
        return self.run("SELECT active, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.name)

    def changes(self, dsn: str = "") -> tuple[str, ...]:
        names = ("--tables", self.name, "--slot", self.name, "--publication", self.name)
        return ("postgres", dsn or self.dsn, *names)

    def rows(self) -> tuple[str, ...]:
        return ("postgres-table", self.dsn, self.name, "--poll", "0.05")


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    found = Database(postgres.dsn)
    yield found
    eventually(lambda: not any(active for active, _ in found.slot()))
    for _ in found.slot():
        found.run("SELECT pg_drop_replication_slot(%s)", found.name)
    found.run(f"DROP PUBLICATION IF EXISTS {found.name}")
    found.run(f"DROP TABLE {found.name} CASCADE")
    found.connection.close()


def texts(bridging: Bridging) -> list[str]:
    return [json.loads(one)["new"]["value"] for one in bridging.values()]


def begun(bridging: Bridging, database: Database) -> None:
    """The slot is there, from which on changes are sent."""
    eventually(lambda: any(active for active, _ in database.slot()), bridging.output)


def test_changes_are_sent_once_although_the_bridge_is_killed(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *database.changes())
    with bridging.running():
        begun(bridging, database)
        database.insert(0, 10)
        # A transaction of several rows, which a reference within it divides.
        database.run(f"INSERT INTO {database.name} (value) SELECT g::text FROM generate_series(10, 1999) g")
        worker.read(200)
    eventually(lambda: not any(active for active, _ in database.slot()))
    database.insert(2000, 2010)
    with bridging.again():
        bridging.wait(2010)

    assert texts(bridging) == [str(number) for number in range(2010)]


def test_every_kind_of_change_is_a_document_in_the_order_of_the_commits(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging, name = Bridging(worker, tmp_path, *database.changes()), database.name
    with bridging.running(), worker.committing(), psycopg.connect(database.dsn) as early:
        begun(bridging, database)
        early.execute(f"INSERT INTO {name} (value) VALUES ('committed last')")
        database.run(f"INSERT INTO {name} (value) VALUES ('ä')")
        database.run(f"UPDATE {name} SET value = NULL WHERE id = 2")
        database.run(f"UPDATE {name} SET id = 20 WHERE id = 2")
        database.run(f"DELETE FROM {name} WHERE id = 20")
        early.commit()
        database.run(f"TRUNCATE {name}")
        bridging.wait(6)

    documents = [json.loads(one) for one in bridging.values()]
    assert {one["table"] for one in documents} == {f"public.{name}"}
    assert [(one["op"], one.get("old"), one.get("new")) for one in documents] == [
        ("insert", None, {"id": 2, "value": "ä"}),
        ("update", None, {"id": 2, "value": None}),
        ("update", {"id": 2}, {"id": 20, "value": None}),
        ("delete", {"id": 20}, None),
        ("insert", None, {"id": 1, "value": "committed last"}),
        ("truncate", None, None),
    ]
    assert worker.committed["key"].to_pylist() == [b"[2]", b"[2]", b"[20]", b"[20]", b"[1]", None]
    assert all(time is not None for time in worker.committed["event_time"].to_pylist())


def test_the_slot_is_told_what_is_committed_and_nothing_else(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *database.changes())
    with bridging.running():
        begun(bridging, database)
        database.insert(0, 3)
        worker.read(3)
        (behind,) = database.run("SELECT pg_current_wal_lsn()")[0]
        passed = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
        assert database.run(passed, behind, database.name) == [(False,)]
        worker.commit()
        # Its log is let go up to the end, also that of other tables.
        database.run("SELECT pg_logical_emit_message(false, 'other', 'x')")
        eventually(lambda: database.run(passed, behind, database.name)[0][0], bridging.output)


def test_a_lost_connection_makes_the_server_forget_nothing_that_is_not_committed(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    # The server asks every half second what it may forget.
    dsn = f"{database.dsn}?options=-c%20wal_sender_timeout%3D1s"
    replication = "SELECT pid, reply_time, now() FROM pg_stat_replication WHERE pid = ANY(SELECT active_pid FROM slots)"
    asked = f"WITH slots AS (SELECT * FROM pg_replication_slots WHERE slot_name = %s) {replication}"
    bridging = Bridging(worker, tmp_path, *database.changes(dsn))
    with bridging.running():
        begun(bridging, database)
        database.insert(0, 3)
        worker.read(3)
        ((former, _, now),) = database.run(asked, database.name)
        database.run("SELECT pg_terminate_backend(%s)", former)
        eventually(
            lambda: any(pid != former and (told or now) > now for pid, told, _ in database.run(asked, database.name)),
            bridging.output,
        )
    worker.crash()
    worker.begin()
    eventually(lambda: not any(active for active, _ in database.slot()))
    with bridging.running(), worker.committing():
        database.insert(3, 5)
        bridging.wait(5)

    assert texts(bridging) == [str(number) for number in range(5)]


def sent_and_stopped(database: Database, worker: FakeWorker, tmp_path: Path) -> Bridging:
    """A bridge of changes that has ended behind three committed ones; its slot is free."""
    bridging = Bridging(worker, tmp_path, *database.changes())
    with bridging.running(), worker.committing():
        begun(bridging, database)
        database.insert(0, 3)
        bridging.wait(3)
    eventually(lambda: not any(active for active, _ in database.slot()))
    return bridging


def test_a_publication_that_lacks_a_table_is_refused(database: Database, worker: FakeWorker, tmp_path: Path) -> None:
    sent_and_stopped(database, worker, tmp_path)
    database.run(f"CREATE SCHEMA {database.name}")
    database.run(f'CREATE TABLE {database.name}."Items" (id bigint PRIMARY KEY)')
    command = list(database.changes())
    command[command.index("--tables") + 1] += f",{database.name}.Items"
    bridging = Bridging(worker, tmp_path, *command)

    said = refused(bridging)
    assert f"publication '{database.name}' is there and lacks the table {database.name}.Items" in said
    assert "[source-setup]" in said

    database.run(f'ALTER PUBLICATION {database.name} ADD TABLE {database.name}."Items"')
    with bridging.running(), worker.committing():
        begun(bridging, database)
        database.run(f'INSERT INTO {database.name}."Items" VALUES (1)')
        bridging.wait(4)
    database.run(f"DROP SCHEMA {database.name} CASCADE")


def test_a_user_who_may_only_replicate_names_the_tables_of_a_publication_that_is_there(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    name = database.name
    database.run(f"CREATE SCHEMA s{name}")
    database.run(f"CREATE TABLE s{name}.{name} (id bigint PRIMARY KEY)")
    database.run(f"CREATE PUBLICATION {name} FOR TABLE s{name}.{name}")
    database.run(f"CREATE ROLE r{name} LOGIN REPLICATION")
    dsn = database.dsn.replace("tests@", f"r{name}@")
    for table in (name, f"s{name}.{name}"):
        names = ("--tables", table, "--slot", name, "--publication", name, "--instance", table)
        bridging = Bridging(worker, tmp_path, "postgres", dsn, *names)
        with bridging.running():
            begun(bridging, database)
        eventually(lambda: not any(active for active, _ in database.slot()))
    database.run(f"DROP SCHEMA s{name} CASCADE")
    database.run(f"DROP ROLE r{name}")


def test_a_slot_that_is_gone_is_an_error_because_changes_are_lost(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = sent_and_stopped(database, worker, tmp_path)
    database.run("SELECT pg_drop_replication_slot(%s)", database.name)
    with bridging.running() as process:
        assert process.wait(SECONDS) == 1

    assert f"PostgreSQL has no replication slot '{database.name}' any more" in bridging.output
    assert "[source-changed]" in bridging.output


def test_a_slot_whose_log_the_server_has_deleted_is_an_error_at_once(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = sent_and_stopped(database, worker, tmp_path)
    database.run("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    database.run("SELECT pg_reload_conf()")
    try:
        lost = "SELECT wal_status = 'lost' FROM pg_replication_slots WHERE slot_name = %s"
        for _ in range(20):
            database.run("SELECT pg_logical_emit_message(false, 'other', 'x')")
            database.run("SELECT pg_switch_wal()")
            database.run("CHECKPOINT")
            if database.run(lost, database.name)[0][0]:
                break
        said = refused(bridging)
    finally:
        database.run("ALTER SYSTEM RESET max_slot_wal_keep_size")
        database.run("SELECT pg_reload_conf()")

    assert f"the server has deleted its log in front of the replication slot '{database.name}'" in said
    assert "max_slot_wal_keep_size" in said
    assert "[source-changed]" in said


def test_a_server_whose_log_ends_before_the_committed_place_is_an_error(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *database.changes())
    for _ in range(3):
        # Ahead of a server that has just been made.
        database.run("SELECT pg_logical_emit_message(false, 'other', 'x')")
        database.run("SELECT pg_switch_wal()")
    with bridging.running(), worker.committing():
        begun(bridging, database)
        database.insert(0, 3)
        bridging.wait(3)
    other = PostgresServer()
    try:
        # A server that was made of an older copy: its log is behind.
        other.start()
        with psycopg.connect(other.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {database.name} (id bigserial PRIMARY KEY, value text)")
            connection.execute(f"CREATE PUBLICATION {database.name} FOR TABLE {database.name}")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [database.name])
            said = refused(Bridging(worker, tmp_path, *database.changes(other.dsn)))
    finally:
        other.remove()

    assert "the log of the server ends at" in said
    assert "[source-changed]" in said


@pytest.mark.long
def test_a_server_that_is_started_again_is_followed(tmp_path: Path, worker: FakeWorker) -> None:
    server = PostgresServer()
    try:
        server.start()
        database = Database(server.dsn)
        bridging = Bridging(worker, tmp_path, *database.changes())
        with bridging.running(), worker.committing():
            begun(bridging, database)
            database.insert(0, 3)
            bridging.wait(3)
            server.stop()
            server.start()
            database.connection = psycopg.connect(server.dsn, autocommit=True)
            database.insert(3, 6)
            bridging.wait(6)

        assert texts(bridging) == [str(number) for number in range(6)]
        assert "answers again" in bridging.output
    finally:
        server.remove()


def test_rows_are_sent_once_although_the_bridge_is_killed(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    database.run(f"INSERT INTO {database.name} (value) SELECT g::text FROM generate_series(0, 1999) g")
    bridging = Bridging(worker, tmp_path, *database.rows())
    bridging.killed_before_the_commit(200)
    with bridging.again():
        database.insert(2000, 2010)
        bridging.wait(2010)

    assert [json.loads(one) for one in bridging.values()] == [
        {"id": number + 1, "value": str(number)} for number in range(2010)
    ]


def test_a_row_that_is_committed_behind_one_with_a_greater_key_is_not_passed(
    database: Database, worker: FakeWorker, tmp_path: Path
) -> None:
    bridging = Bridging(worker, tmp_path, *database.rows())
    with bridging.running(), worker.committing(), psycopg.connect(database.dsn) as early:
        early.execute(f"INSERT INTO {database.name} (value) VALUES ('early')")
        database.run(f"INSERT INTO {database.name} (value) VALUES ('late')")
        waits = "SELECT 1 FROM pg_stat_activity WHERE query LIKE '%%pg_locks%%' AND pid <> pg_backend_pid()"
        eventually(lambda: database.run(waits), bridging.output)
        assert bridging.values() == []
        early.commit()
        bridging.wait(2)

    assert [json.loads(one)["value"] for one in bridging.values()] == ["early", "late"]


@pytest.mark.parametrize(
    "change", ["TRUNCATE {name} RESTART IDENTITY", "DROP TABLE {name}"], ids=["truncated", "made again"]
)
@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "while it is away"])
def test_a_table_whose_keys_begin_anew_is_an_error(
    database: Database, worker: FakeWorker, tmp_path: Path, change: str, running: bool
) -> None:
    bridging = Bridging(worker, tmp_path, *database.rows())

    def begin_anew() -> None:
        with database.connection.transaction():
            database.run(change.format(name=database.name))
            database.run(f"CREATE TABLE IF NOT EXISTS {database.name} (id bigserial PRIMARY KEY, value text)")
            database.insert(10, 12)

    with bridging.running() as process, worker.committing():
        database.insert(0, 5)
        bridging.wait(5)
        if running:
            begin_anew()
            assert process.wait(SECONDS) == 1
    if not running:
        begin_anew()
        refused(bridging)

    said = bridging.output
    # While it runs, it may look between the two rows.
    assert re.search(rf"table {database.name} has numbered its keys up to [12], and the key 5 is committed", said)
    assert "[source-changed]" in said


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ALTER TABLE {name} RENAME TO {name}_old", 'relation "{name}" does not exist'),
        ("ALTER TABLE {name} RENAME COLUMN id TO number", 'column "id" does not exist'),
    ],
    ids=["table", "column"],
)
def test_a_table_or_a_key_that_goes_while_it_is_read_is_an_error_that_names_it(
    database: Database, worker: FakeWorker, tmp_path: Path, change: str, problem: str
) -> None:
    bridging = Bridging(worker, tmp_path, *database.rows())
    with bridging.running() as process, worker.committing():
        database.insert(0, 5)
        bridging.wait(5)
        database.run(change.format(name=database.name))
        assert process.wait(SECONDS) == 1
    database.run(f"DROP TABLE IF EXISTS {database.name}_old")
    database.run(f"CREATE TABLE IF NOT EXISTS {database.name} ()")

    assert f"table {database.name} cannot be read: {problem.format(name=database.name)}" in bridging.output
    assert "[source-setup]" in bridging.output


def test_a_table_without_rows_is_waited_for(database: Database, worker: FakeWorker, tmp_path: Path) -> None:
    bridging = Bridging(worker, tmp_path, *database.rows())
    with bridging.running(), worker.committing():
        database.insert(0, 5)
        bridging.wait(5)
        # Its sequence goes on, so nothing is missed.
        database.run(f"DELETE FROM {database.name}")
        database.insert(5, 7)
        bridging.wait(7)
        database.run(f"TRUNCATE {database.name}")
        database.insert(7, 9)
        bridging.wait(9)

    assert [json.loads(one)["value"] for one in bridging.values()] == [str(number) for number in range(9)]


@pytest.mark.parametrize(
    ("change", "key", "problem"),
    [
        ("SELECT 1", "value", "that is text and not unique and may be NULL"),
        ("ALTER SEQUENCE {name}_id_seq CACHE 5", "id", "a sequence with CACHE 5"),
        ("INSERT INTO {name} (id) VALUES (0)", "id", "has the key 0, and a reference is above 0"),
        ("ALTER TABLE {name} ADD other bigint UNIQUE", "other", "that is bigint and may be NULL"),
        ("CREATE TABLE {name}_child () INHERITS ({name})", "id", "has tables that inherit from it"),
    ],
)
def test_a_table_that_cannot_be_read_so_is_refused_with_the_way_out(
    database: Database, worker: FakeWorker, tmp_path: Path, change: str, key: str, problem: str
) -> None:
    database.run(change.format(name=database.name))
    bridging = Bridging(worker, tmp_path, *database.rows(), "--key", key)
    with bridging.running() as process:
        assert process.wait(SECONDS) == 1

    assert problem in bridging.output
    assert "[source-setup]" in bridging.output
