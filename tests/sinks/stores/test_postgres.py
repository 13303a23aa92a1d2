"""Rows reach a table of PostgreSQL a batch at a time, and once, in both of the ways there are."""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from proving.servers.postgres import PostgresServer
from tests import evil_values as evil
from tests.sinks.stores.checks import (
    CHECKS,
    Store,
    check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over,
    deliver,
    name_of,
    refuses,
)
from tests.waiting import eventually
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import IDEMPOTENT, TWO_PHASE
from wallaroo_spark.sinks.stores.postgres import KEEP, PostgresSink, hex_of

Make = Callable[..., PostgresSink]


class Table:
    """A table of the test's own, in a schema of its own whose name wants quoting."""

    def __init__(self, dsn: str) -> None:
        self.connect(dsn)
        self.schema = f"Schema {uuid.uuid4().hex[:8]}"
        self.name = f'"{self.schema}".rows'
        self.run(f'CREATE SCHEMA "{self.schema}"')

    def connect(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)

    def run(self, query: str) -> list[Any]:
        cursor = self.connection.execute(query)
        return cursor.fetchall() if cursor.description else []

    def create(self, columns: str) -> None:
        self.run(f"CREATE TABLE {self.name} ({columns})")

    def values(self) -> list[str]:
        return [row[0] for row in self.run(f"SELECT value FROM {self.name}")]

    def tables(self) -> list[str]:
        found = self.run(f"SELECT tablename FROM pg_tables WHERE schemaname = '{self.schema}' ORDER BY 1")
        return [row[0] for row in found]


@pytest.fixture
def table(postgres: PostgresServer) -> Iterator[Table]:
    made = Table(postgres.dsn)
    made.create("value text")
    yield made
    # A prepared transaction of a failed test would be waited for without end.
    for (gid,) in made.run("SELECT gid FROM pg_prepared_xacts"):
        made.run(f"ROLLBACK PREPARED '{gid}'")
    made.run(f'DROP SCHEMA "{made.schema}" CASCADE')
    made.connection.close()


@pytest.fixture(params=[TWO_PHASE, IDEMPOTENT])
def make(request: pytest.FixtureRequest, postgres: PostgresServer, table: Table) -> Make:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    settings = {"table": table.name, "name": name, "mode": request.param}
    return lambda **more: PostgresSink(postgres.dsn, **{**settings, **more})


@pytest.fixture
def store(make: Make, table: Table) -> Store:
    return Store(make, table.values)


def prepared(sink: PostgresSink, columns: dict[str, Any], batch: int = 0) -> Prepared:
    return sink.prepare(Transaction.new(sink.name, batch, 0), iter([pa.record_batch(columns)]))


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store, table: Table) -> None:
    check(store)
    assert table.tables() == ["rows", "wallaroo_commits"]


def test_columns_go_by_name_and_every_type_arrives(make: Make, table: Table) -> None:
    table.run(f"DROP TABLE {table.name}")
    table.create(
        '"at" timestamptz, plain timestamp, "day" date, price numeric(10,2), "In Stock" bool, n bigint, f float8, '
        "raw bytea, note text, doc jsonb, made int GENERATED ALWAYS AS (1) STORED, id serial PRIMARY KEY, gone text"
    )
    table.run(f"ALTER TABLE {table.name} DROP COLUMN gone")
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    columns = {
        "note": pa.array(['ä, "q"\n\\.', "", None]).dictionary_encode(),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "In Stock": pa.array([True, False, None]),
        "f": pa.array([float("inf"), 0.1, None]),
        "n": pa.array([-(2**63), 2**63 - 1, None]),
        "price": pa.array([Decimal("1.50"), Decimal("-0.01"), None], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 1, 2), date(1, 1, 1), None]),
        "plain": pa.array([at.replace(tzinfo=None), None, None], pa.timestamp("us")),
        "at": pa.array([at.astimezone(timezone(timedelta(hours=5))), at, None], pa.timestamp("us", "Europe/Berlin")),
        "doc": pa.array(['{"a": [1]}', "null", None]),
    }
    sink = make()

    sink.commit(0, [prepared(sink, columns)])

    names = ", ".join(f'"{name}"' for name in columns)
    found = table.run(f"SELECT {names} FROM {table.name} ORDER BY id")
    wanted = [list(values) for values in zip(*(array.to_pylist() for array in columns.values()), strict=True)]
    wanted[0][9], wanted[1][9] = {"a": [1]}, None
    assert [list(row) for row in found] == wanted


@pytest.mark.parametrize("data", [[b"\x00\xff", None, b"", b"abc"], [None, None], [b""], []])
def test_bytes_as_hexadecimal(data: list[bytes | None]) -> None:
    wanted = [None if value is None else "\\x" + value.hex() for value in data]

    assert hex_of(pa.array(data, pa.binary())).to_pylist() == wanted
    assert hex_of(pa.array(data, pa.binary())[1:]).to_pylist() == wanted[1:]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"other": ["a"]}, "the table has no column other; it has value, needed, made, n"),
        ({"value": ["a"]}, "column needed is NOT NULL and has no default"),
        ({"value": ["a"], "needed": ["b"], "made": [1]}, "the database generates the values of column made"),
        ({"value": [b"a"], "needed": ["b"]}, "column value is binary in the rows and text in the table"),
        ({"value": [["a"]], "needed": ["b"]}, "column value is list<item: string>, which cannot be written"),
        ({"value": ["a"], "needed": pa.array([None], pa.string())}, "null value in column"),
        ({"value": ["a"], "needed": ["b"], "n": ["x"]}, 'invalid input syntax for type integer: "x" (COPY'),
        ({"value": ["a"], "needed": ["b"], "n": [-1]}, "violates check constraint"),
        ({"value": ["a\0b"], "needed": ["b"]}, "invalid byte sequence"),
    ],
    ids=["unknown", "needed", "generated", "binary", "nested", "null", "number", "check", "zero"],
)
def test_rows_that_the_table_does_not_take_are_a_vote_to_abort(
    make: Make, table: Table, columns: dict[str, Any], said: str
) -> None:
    table.run(f"DROP TABLE {table.name}")
    table.create("value text, needed text NOT NULL, made int GENERATED ALWAYS AS IDENTITY, n int CHECK (n > 0)")
    sink = make()

    assert said in refuses(sink, columns)
    assert (table.run(f"SELECT * FROM {table.name}"), list(sink.recover())) == ([], [])


def test_evil_bytes_arrive_as_they_are(make: Make, table: Table) -> None:
    table.run(f"ALTER TABLE {table.name} ALTER value TYPE bytea USING NULL, ADD place serial")
    sink = make()
    sink.commit(0, [prepared(sink, {"value": pa.array([*evil.PAYLOADS.values()])})])
    assert [row[0] for row in table.run(f"SELECT value FROM {table.name} ORDER BY place")] == [*evil.PAYLOADS.values()]


@pytest.mark.parametrize("name", evil.PAYLOADS)
@pytest.mark.parametrize("kind", ["text", "jsonb"])
def test_an_evil_text_arrives_or_is_a_vote_to_abort_with_its_reason(
    make: Make, table: Table, kind: str, name: str
) -> None:
    payload = evil.PAYLOADS[name]
    table.run(f"ALTER TABLE {table.name} ALTER value TYPE {kind} USING NULL")
    sink = make()
    try:
        part = prepared(sink, {"value": evil.texts(payload)})
    except SinkError as refused:
        problem = str(refused)
    else:
        problem = ""
        sink.commit(0, [part])
        equal = table.connection.execute(f"SELECT value = %s::{kind} FROM {table.name}", [payload.decode()])
        assert equal.fetchall() == [(True,)]
    # PostgreSQL keeps no NUL and only UTF-8; jsonb only what it reads as JSON.
    assert not problem or kind == "jsonb" or b"\0" in payload or payload.decode(errors="replace").encode() != payload
    assert len(problem) < 1000
    assert (table.run(f"SELECT count(*) FROM {table.name}"), list(sink.recover())) == ([(0 if problem else 1,)], [])


def test_a_table_that_is_not_there_is_named(make: Make) -> None:
    with pytest.raises(SinkError, match=r"there is no table nowhere\.rows in database postgres"):
        make(table="nowhere.rows").recover()
    with pytest.raises(SinkError):
        make(table='"open').recover()


def test_a_transaction_that_was_rolled_back_does_not_count_as_committed(make: Make, table: Table) -> None:
    sink = make()
    one = prepared(sink, {"value": ["a"]})
    sink.abort([one.transaction])

    with pytest.raises(SinkError, match=r"0 of the 1 rows .* the transaction was rolled back"):
        sink.commit(0, [one])


def test_other_peoples_transactions_are_left_alone(store: Store, make: Make, postgres: PostgresServer) -> None:
    other = make(name="another")
    theirs = prepared(other, {"value": ["theirs"]})
    store.make().commit(0, store.prepare(0, ["ours"]))

    assert list(store.make().recover()) == []
    assert list(other.recover()) == [theirs.transaction]
    other.abort([theirs.transaction])


def test_lines_of_old_batches_go(store: Store, table: Table) -> None:
    store.make().commit(0, store.prepare(0, ["a"]))
    store.make().commit(1, store.prepare(1, ["b"]))
    store.make().commit(KEEP + 1, store.prepare(KEEP + 1, ["c"]))

    kept = table.run(f'SELECT batch, rows FROM "{table.schema}".wallaroo_commits ORDER BY batch')
    assert kept == [(1, 1), (KEEP + 1, 1)]


def test_an_older_checkpoint_is_refused_and_a_new_one_begins_anew(make: Make, table: Table, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    name = make().name
    store = Store(lambda: make(name=name).of_checkpoint(str(checkpoint)), table.values)
    check_an_older_checkpoint_is_refused_and_its_rows_are_not_passed_over(store, checkpoint)

    shutil.rmtree(checkpoint)
    deliver(store, checkpoint, 0, "again")
    assert sorted(table.values()) == ["a", "again", "b", "c"]


def test_a_lock_that_nobody_gives_up_is_a_vote_to_abort(table: Table, postgres: PostgresServer) -> None:
    table.run(f"DROP TABLE {table.name}")
    table.create("value text PRIMARY KEY")
    sink = PostgresSink(postgres.dsn, table=table.name, name="locks", mode=TWO_PHASE, lock_timeout=0.1)
    first = prepared(sink, {"value": ["a"]})

    assert "see pg_locks and pg_prepared_xacts" in refuses(sink, {"value": ["a"]})
    sink.commit(0, [first])
    assert "duplicate key" in refuses(sink, {"value": ["a"]}, batch=1)


@pytest.fixture
def keyed(table: Table) -> Table:
    """The table with a unique key, which staging tables do not check."""
    table.run(f"DROP TABLE {table.name}")
    table.create("value text UNIQUE DEFERRABLE INITIALLY DEFERRED")
    return table


def test_a_key_that_staging_cannot_see_is_refused_before_the_decision(keyed: Table, postgres: PostgresServer) -> None:
    keyed.run(f"INSERT INTO {keyed.name} VALUES ('b')")
    sink = PostgresSink(postgres.dsn, table=keyed.name, name="keys", mode=IDEMPOTENT)
    parts = Store(lambda: sink, keyed.values).prepare(0, ["a"], ["b"])

    with pytest.raises(SinkError, match=r"could not take batch 0 .*duplicate key value"), sink.pre_commit(0, parts):
        raise AssertionError("the batch would be decided")
    assert keyed.values() == ["b"]
    sink.abort([one.transaction for one in parts])
    assert sink.recover() == []


@pytest.mark.parametrize("lost", ["not", "by a lost connection", "by a driver that hangs"])
def test_rows_that_were_moved_before_the_decision_are_visible_with_the_commit(
    keyed: Table, postgres: PostgresServer, lost: str
) -> None:
    sink = PostgresSink(postgres.dsn, table=keyed.name, name="moved", mode=IDEMPOTENT, lock_timeout=0.2)
    parts = Store(lambda: sink, keyed.values).prepare(0, ["a"], ["b"])
    mine = "application_name = 'wallaroo moved' AND state LIKE 'idle in transaction%'"

    with sink.pre_commit(0, parts):
        assert keyed.values() == []
        if lost == "by a lost connection":
            keyed.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")
        if lost == "by a driver that hangs":
            eventually(lambda: keyed.run(f"SELECT pid FROM pg_stat_activity WHERE {mine}") == [])
        sink.commit(0, parts)
        assert sorted(keyed.values()) == ["a", "b"]

    sink.commit(0, parts)
    assert sorted(keyed.values()) == ["a", "b"]
    assert sink.recover() == []


def test_a_reader_sees_all_of_an_idempotent_batch_or_nothing(table: Table, postgres: PostgresServer) -> None:
    sink = PostgresSink(postgres.dsn, table=table.name, name="at-once", mode=IDEMPOTENT)
    store = Store(lambda: sink, table.values)
    parts = store.prepare(0, ["a", "b"], ["c"])
    # Its rows are moved, and it is stopped before the last statement of its transaction.
    with pytest.raises(SinkError, match="0 of the 9 rows"):
        sink.commit(0, [*parts, Prepared(Transaction.new("at-once", 0, 2), 9, parts[0].detail)])
    assert table.values() == []

    sink.commit(0, parts)
    assert sorted(table.values()) == ["a", "b", "c"]


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that a test may end and start."""
    server = PostgresServer()
    yield server
    server.remove()


def test_prepared_transactions_survive_a_crash_of_the_server(own_postgres: PostgresServer) -> None:
    dsn = own_postgres.dsn
    own_postgres.start()
    table = Table(dsn)
    table.create("value text")
    sinks = [PostgresSink(dsn, table=table.name, name=mode, mode=mode) for mode in (TWO_PHASE, IDEMPOTENT)]
    parts = [prepared(sink, {"value": [sink.name]}) for sink in sinks]
    own_postgres.stop()
    with pytest.raises(SinkError, match="check that the server runs"):
        sinks[0].commit(0, [parts[0]])

    own_postgres.start()

    for sink, one in zip(sinks, parts, strict=True):
        assert list(sink.recover()) == [one.transaction]
        sink.commit(0, [one])
    table.connect(dsn)
    assert sorted(table.values()) == [IDEMPOTENT, TWO_PHASE]
    # A server that allows fewer prepared transactions could not read of these in its log.
    table.run("CHECKPOINT")
    table.connection.close()
    own_postgres.stop()


def test_more_partitions_than_the_server_prepares_are_a_vote_to_abort(own_postgres: PostgresServer) -> None:
    own_postgres.start(prepared=1)
    table = Table(own_postgres.dsn)
    table.create("value text")
    sink = PostgresSink(own_postgres.dsn, table=table.name, name="many")
    first = prepared(sink, {"value": ["a"]})

    assert "raise max_prepared_transactions, give batches fewer partitions" in refuses(sink, {"value": ["b"]})
    sink.abort([first.transaction])
    assert table.values() == []
    # A server that allows fewer prepared transactions could not read of these in its log.
    table.run("CHECKPOINT")
    table.connection.close()
    own_postgres.stop()


def test_a_server_without_prepared_transactions_is_used_the_other_way(own_postgres: PostgresServer) -> None:
    own_postgres.start(prepared=0)
    table = Table(own_postgres.dsn)
    table.create("value text")
    sink = PostgresSink(own_postgres.dsn, table=table.name, name="plain")
    one = prepared(sink, {"value": ["a"]})
    sink.commit(0, [one])

    assert (one.detail["mode"], table.values()) == (IDEMPOTENT, ["a"])
    demanding = PostgresSink(own_postgres.dsn, table=table.name, name="plain", mode=TWO_PHASE)
    assert "max_prepared_transactions is 0" in refuses(demanding, {"value": ["a"]})
    table.connection.close()


def test_a_server_that_allows_them_is_used_with_two_phases(make: Make) -> None:
    sink = make(mode="auto")
    one = prepared(sink, {"value": ["a"]})
    sink.abort([one.transaction])

    assert one.detail["mode"] == TWO_PHASE


def test_settings_that_cannot_be_are_refused_without_telling_secrets(make: Make) -> None:
    with pytest.raises(ConfigurationError, match=r"sink .*: mode: 'both' is not one of auto, two-phase, idempotent"):
        make(mode="both")
    sink = PostgresSink("host=h password=secret oops", table="t", name="n")
    with pytest.raises(ConfigurationError, match="the dsn cannot be read") as refused:
        sink.recover()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(("more", "expected"), [("", (30, 10, 3)), ("?keepalives_idle=7", (7, 10, 3))])
def test_a_server_that_is_gone_is_noticed_while_its_answer_is_waited_for(
    postgres: PostgresServer, more: str, expected: tuple[int, ...]
) -> None:
    sink = PostgresSink(postgres.dsn + more, table="rows", name="orders")
    with sink._connected("look") as connection, socket.socket(fileno=os.dup(connection.fileno())) as wire:
        asked = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        found = tuple(wire.getsockopt(socket.IPPROTO_TCP, option) for option in asked)
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert found == expected
