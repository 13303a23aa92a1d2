"""Rows reach a table of MariaDB, PostgreSQL or SQLite a batch at a time, and once; what would be changed is refused."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from proving.servers.mariadb import MariaServer
from proving.servers.postgres import PostgresServer
from tests import evil_values as evil
from tests.sinks.conftest import a_mariadb
from tests.sinks.stores.checks import CHECKS, Store, check_a_crash_behind_the_commit_repeats_nothing, name_of, refuses
from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError, PackageMissingError, SinkError
from wallaroo_spark.sinks.coordinator import Coordinator, vote
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.stores.sql import sink as sql_sink
from wallaroo_spark.sinks.stores.sql.sink import SqlSink
from wallaroo_spark.sinks.stores.sql.table import BATCHES, InsertedBatch

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


class Table:
    """A table of the test's own in a database that others use too."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, f"rows_{uuid.uuid4().hex[:10]}"
        self.engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")

    def run(self, query: str) -> list[Any]:
        with self.engine.connect() as connection:
            found = connection.exec_driver_sql(query.replace("{t}", self.name))
            return [tuple(row) for row in found] if found.returns_rows else []

    def create(self, columns: str) -> None:
        self.run(f"CREATE TABLE {{t}} ({columns})")

    def values(self) -> list[str]:
        return [row[0] for row in self.run("SELECT value FROM {t}")]

    def sink(self, checkpoint: Path, **more: Any) -> SqlSink:
        given = {"url": self.url, "table": self.name, "checkpoint": str(checkpoint), "name": "orders", **more}
        return SqlSink(**given)


def with_table(url: str, columns: str = "value text") -> Iterator[Table]:
    table = Table(url)
    if columns:
        table.create(columns)
    yield table
    table.run("DROP TABLE IF EXISTS {t}")
    table.engine.dispose()


@pytest.fixture
def maria(mariadb: MariaServer) -> Iterator[Table]:
    yield from with_table(mariadb.url())


@pytest.fixture
def of_postgres(postgres: PostgresServer) -> Iterator[Table]:
    yield from with_table(postgres.dsn.replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture
def lite(tmp_path: Path) -> Iterator[Table]:
    yield from with_table(f"sqlite:///{tmp_path / 'rows.db'}")


@pytest.fixture(params=["maria", "of_postgres", "lite"])
def table(request: pytest.FixtureRequest) -> Table:
    found: Table = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def store(table: Table, checkpoint: Path) -> Store:
    return Store(lambda: table.sink(checkpoint), table.values)


def prepared(sink: SqlSink, columns: dict[str, Any], batch: int = 0) -> list[Prepared]:
    return [sink.prepare(Transaction.new(sink.name, batch, 0), iter([pa.record_batch(columns)]))]


def write(sink: SqlSink, columns: dict[str, Any], batch: int = 0) -> None:
    """Both phases, as the driver goes through them."""
    parts = prepared(sink, columns, batch)
    with sink.pre_commit(batch, parts):
        sink.commit(batch, parts)


def refused(sink: SqlSink, columns: dict[str, Any], batch: int = 0) -> str:
    """The reason for which a batch is aborted, by the check in tasks or by the database."""
    with pytest.raises(SinkError) as raised, sink.pre_commit(batch, prepared(sink, columns, batch)):
        pytest.fail("the batch was taken")
    return raised.value.message


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_a_store_under_two_phase_commit(check: Callable[[Store], None], store: Store) -> None:
    check(store)


def test_a_crash_behind_the_commit_repeats_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    check_a_crash_behind_the_commit_repeats_nothing(store, monkeypatch)


def test_rows_are_inserted_before_the_decision_and_visible_behind_it(store: Store, table: Table) -> None:
    sink: Any = store.make()
    parts = store.prepare(0, ["a", "b", "c"], [], ["d"], sink=sink)
    with sink.pre_commit(0, parts):
        assert table.values() == []
        sink.commit(0, parts)
        assert table.values() == ["a", "b", "c", "d"]
    assert table.run(f"SELECT sink, batch FROM {BATCHES} WHERE sink = 'orders'") != []


def test_a_pre_commit_that_nobody_commits_leaves_nothing_and_locks_nothing(store: Store, table: Table) -> None:
    sink: Any = store.make()
    parts = store.prepare(0, ["a"], sink=sink)
    with sink.pre_commit(0, parts):
        pass

    assert table.values() == []
    store.make().commit(0, parts)
    assert table.values() == ["a"]


def test_the_driver_aborts_what_the_table_refuses_and_goes_on(table: Table, checkpoint: Path) -> None:
    table.run("DROP TABLE {t}")
    table.create("value varchar(20) PRIMARY KEY")
    sink = table.sink(checkpoint)
    contents = {0: ["a", "b"], 1: ["c", "a"], 2: ["d"]}

    def run(batch: int) -> Any:
        return [vote(sink, batch, 0, iter([pa.record_batch({"value": contents[batch]})]))]

    driver = Coordinator(sink, DecisionLog(str(checkpoint), sink.name))
    driver.deliver(0, run)
    with pytest.raises(SinkError, match=r"could not take batch 1 in table rows_\w+: .*(?i:duplicate|unique)"):
        driver.deliver(1, run)
    assert (sorted(table.values()), list(sink.recover())) == (["a", "b"], [])
    contents[1] = ["c"]
    for batch in (1, 2):
        driver.deliver(batch, run)
    assert sorted(table.values()) == ["a", "b", "c", "d"]


def test_an_executor_needs_neither_sqlalchemy_nor_the_database(table: Table, checkpoint: Path) -> None:
    program = """
import pickle, sys
sys.modules["sqlalchemy"] = sys.modules["pymysql"] = sys.modules["psycopg"] = None
import pyarrow as pa
from wallaroo_spark.sinks.interface import Transaction
sink = pickle.load(sys.stdin.buffer)
assert sink.prepare(Transaction("orders", 0, 0, "a"), iter([pa.record_batch({"value": ["a"]})])).rows == 1
"""
    sink = table.sink(checkpoint)
    given = pickle.dumps(sink)
    subprocess.run([sys.executable, "-c", program], input=given, check=True, timeout=SECONDS)

    sink.commit(0, [Prepared(one, 1) for one in sink.recover()])
    assert table.values() == ["a"]


# What arrives.

COMMON: dict[str, Any] = {
    "note": pa.array(['ä, "q"\n\\.%s', "", None]).dictionary_encode(),
    "In Stock": pa.array([True, False, None]),
    "n": pa.array([-(2**63), 2**63 - 1, None]),
    "f": pa.array([1e300, 0.1, None]),
    "day": pa.array([date(2026, 1, 2), date(1, 1, 1), None]),
    "plain": pa.array([AT.replace(tzinfo=None), datetime(9999, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")),
    "a%b:c(d)": pa.array([1, 2, 3], pa.int32()),
    "select": pa.array(["x", "y", "z"], pa.large_string()),
}
MORE: dict[str, Any] = {
    "price": pa.array([Decimal("1.50"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
    "at": pa.array([AT, AT, None], pa.timestamp("us", "Europe/Berlin")),
    "raw": pa.array([b"\x00\xff'\\", b"", None], pa.binary()),
    "clock": pa.array([time_of_day(3, 4, 5, 6), None, None], pa.time64("ns")),
    "doc": pa.array(['{"a": [1]}', "null", None]),
    "midnight": pa.array([date(2026, 1, 2), None, None]),
    "u": pa.array(["123e4567-e89b-12d3-a456-426614174000", None, None]),
}
TYPES = {
    "mariadb": "note text, `In Stock` bool, n bigint, f double, day date, plain datetime(6), `a%%b:c(d)` int, "
    "`select` text, price decimal(10,2), `at` timestamp(6) null, raw blob, clock time(6), doc json, midnight datetime, "
    "u uuid",
    "postgresql": 'note text, "In Stock" bool, n bigint, f float8, day date, plain timestamp, "a%%b:c(d)" int, '
    '"select" varchar(9), price numeric, at timestamptz, raw bytea, clock time, doc jsonb, midnight timestamp, u uuid',
    "sqlite": 'note text, "In Stock" bool, n bigint, f double, day date, plain datetime, "a%b:c(d)" int, "select" text',
}


def test_columns_go_by_name_and_every_type_arrives(table: Table, checkpoint: Path) -> None:
    kind = table.engine.dialect.name
    table.run("DROP TABLE {t}")
    table.create(TYPES[kind])
    columns = COMMON if kind == "sqlite" else {**COMMON, **MORE}

    write(table.sink(checkpoint), columns)

    # SQLAlchemy reads a DOUBLE of MariaDB as a decimal number.
    plain = sa.Column("f", sa.Double)
    reflected = sa.Table(table.name, sa.MetaData(), plain, autoload_with=table.engine)
    with table.engine.connect() as connection:
        if kind == "postgresql":
            connection.exec_driver_sql("SET timezone TO 'UTC'")
        elif kind == "mariadb":
            connection.exec_driver_sql("SET time_zone = '+00:00'")
        found = connection.execute(sa.select(*(reflected.c[name] for name in columns))).all()
    wanted = {name: array.to_pylist() for name, array in columns.items()}
    if "at" in wanted:
        zone = UTC if kind == "postgresql" else None
        wanted["at"] = [AT.replace(tzinfo=zone), AT.replace(tzinfo=zone), None]
        wanted["midnight"] = [datetime(2026, 1, 2), None, None]
        wanted["u"] = [uuid.UUID(wanted["u"][0]), None, None]
        wanted["clock"] = [time_of_day(3, 4, 5, 6), None, None]
    if kind == "postgresql":
        wanted["doc"] = [{"a": [1]}, None, None]
    rows = [tuple(row) for row in zip(*wanted.values(), strict=True)]
    assert sorted(map(tuple, found), key=lambda row: row[6]) == rows


@pytest.mark.parametrize("name", evil.PAYLOADS)
def test_an_evil_text_arrives_or_is_refused_with_its_reason(table: Table, checkpoint: Path, name: str) -> None:
    payload = evil.PAYLOADS[name]
    if table.engine.dialect.name == "mariadb":
        table.run("ALTER TABLE {t} MODIFY value longtext")
    try:
        write(table.sink(checkpoint), {"value": evil.texts(payload)})
    except SinkError as error:
        problem = error.message
    else:
        problem = ""
        assert table.values() == [payload.decode()]
    # Only PostgreSQL keeps no NUL.
    nul = b"\0" in payload and table.engine.dialect.name == "postgresql"
    assert bool(problem) == (nul or payload.decode(errors="replace").encode() != payload)
    assert len(problem) < 2000


def test_evil_bytes_arrive_as_they_are_for_the_database_s_own_client(
    maria: Table, mariadb: MariaServer, checkpoint: Path
) -> None:
    maria.run("ALTER TABLE {t} MODIFY value longblob, ADD place int AUTO_INCREMENT PRIMARY KEY")
    write(maria.sink(checkpoint), {"value": pa.array([*evil.PAYLOADS.values()])})

    found = mariadb.ask(f"SELECT HEX(value) FROM {maria.name} ORDER BY place")
    assert [bytes.fromhex(row[0]) if row else b"" for row in found] == [*evil.PAYLOADS.values()]


def test_floats_that_are_no_numbers(table: Table, checkpoint: Path) -> None:
    table.run("DROP TABLE {t}")
    table.create("value double precision")
    columns = {"value": pa.array([float("inf"), float("-inf")])}
    if table.engine.dialect.name == "mariadb":
        assert "inf can not be used" in refused(table.sink(checkpoint), columns)
        return
    not_a_number = {"value": pa.array([None, float("nan")])}
    if table.engine.dialect.name == "sqlite":
        assert "is not a number in a row, which SQLite keeps as null" in refused(table.sink(checkpoint), not_a_number)
    else:
        write(table.sink(checkpoint), not_a_number)
        assert table.run("SELECT value::text FROM {t}") == [(None,), ("NaN",)]
        table.run("DELETE FROM {t}")
    write(table.sink(checkpoint), columns, 1)
    assert table.run("SELECT value FROM {t}") == [(float("inf"),), (float("-inf"),)]


# What is refused, because the table would not have it as it is.

DEFINITION = {
    "mariadb": "value varchar(5), needed int NOT NULL, made int GENERATED ALWAYS AS (needed + 1), at datetime, "
    "price decimal(10,2), f double, raw blob, id int AUTO_INCREMENT PRIMARY KEY, given int NOT NULL DEFAULT 7",
    "postgresql": "value varchar(5), needed int NOT NULL, made int GENERATED ALWAYS AS (needed + 1) STORED, "
    "at timestamp(0), price numeric(10,2), f float8, raw bytea, id serial PRIMARY KEY, given int NOT NULL DEFAULT 7",
    "sqlite": "value varchar(5), needed int NOT NULL, made int GENERATED ALWAYS AS (needed + 1), "
    "price decimal(10,2), f double, raw blob, id integer PRIMARY KEY, given int NOT NULL DEFAULT 7",
}
BLANKS = "with blanks at its end, which the database cuts"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"other": ["a"]}, "the table has no column other; it has value, needed, made"),
    ({"VALUE": ["a"]}, "the table has no column VALUE"),
    ({"value": ["a"]}, "column needed is NOT NULL and has no default"),
    ({"needed": [1], "made": [1]}, "the database generates the values of column made"),
    ({"needed": pa.array([1, None])}, "column needed is NOT NULL in the table, and null in a row"),
    ({"needed": [1], "given": pa.array([None], pa.int32())}, "column given is NOT NULL in the table, and null"),
    ({"needed": ["1"]}, "column needed is string in the rows and INT"),
    ({"needed": [1.0]}, "column needed is double in the rows and INT"),
    ({"needed": [1], "value": [1]}, "column value is int64 in the rows and VARCHAR(5"),
    ({"needed": [1], "value": [b"a"]}, "column value is binary in the rows and VARCHAR(5"),
    ({"needed": [1], "raw": ["a"]}, "column raw is string in the rows and"),
    ({"needed": [1], "f": [1]}, "column f is int64 in the rows and"),
    ({"needed": [1], "price": [1.5]}, "column price is double in the rows and"),
    ({"needed": [1], "price": pa.array([Decimal("1.005")])}, "the table keeps 2 decimal places"),
    ({"needed": [1], "value": [["a"]]}, "column value is list<item: string>, which cannot be written"),
    ({"needed": [1], "value": ["abcde "]}, f"a text of more than 5 {BLANKS}"),
    ({"needed": [1], "value": evil.texts(b"\xff")}, "column value has a text that is no UTF-8"),
]


@pytest.mark.parametrize(("columns", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_rows_that_the_table_does_not_have_as_they_are_are_refused(
    table: Table, checkpoint: Path, columns: dict[str, Any], said: str
) -> None:
    table.run("DROP TABLE {t}")
    table.create(DEFINITION[table.engine.dialect.name])
    sink = table.sink(checkpoint)

    assert said in refused(sink, columns)

    assert table.run("SELECT * FROM {t}") == []
    write(sink, {"needed": [1]})
    assert table.run("SELECT needed, given FROM {t}") == [(1, 7)]


def test_a_table_of_another_kind_is_named(table: Table, checkpoint: Path) -> None:
    sink = table.sink(checkpoint, table="nowhere.rows" if table.engine.dialect.name != "sqlite" else "nothing")
    assert "there is no table" in refused(sink, {"value": ["a"]})


@pytest.mark.parametrize(
    ("kind", "column", "said"),
    [
        ("varchar(3)", ["abcd"], "Data too long for column 'value' at row 1"),
        ("varchar(20) CHARACTER SET utf8mb3", ["😀"], "Incorrect string value"),
        ("varchar(20) CHARACTER SET latin1", ["Ω"], "Incorrect string value"),
        ("tinytext", ["a" * 255 + " "], f"a text of more than 255 {BLANKS}"),
        ("tinytext", ["a" * 256], "Data too long"),
        ("tinyint", [128], "Out of range value"),
        ("int unsigned", [-1], "Out of range value"),
        ("decimal(4,2)", pa.array([Decimal("100.5")]), "Out of range value"),
        ("float", [1e300], "Out of range value"),
        ("double", [float("nan")], "nan can not be used"),
        ("datetime", pa.array([AT]), "fractions of a second, of which the table keeps 0 digits"),
        ("datetime(3)", pa.array([AT]), "fractions of a second, of which the table keeps 3 digits"),
        ("time", pa.array([time_of_day(0, 0, 0, 1)]), "fractions of a second"),
        ("timestamp(6) NULL", pa.array([datetime(2045, 1, 1)]), "Incorrect datetime value"),
        ("datetime(6)", pa.array([10**18], pa.timestamp("us")), "has a value that cannot be written"),
        ("date", pa.array([datetime(2026, 1, 1)]), "column value is timestamp[us] in the rows and DATE"),
        ("year", [99], "column value is int64 in the rows and YEAR"),
        ("datetime", ["2026-01-02"], "column value is string in the rows and DATETIME"),
        ("enum('10', '20')", ["2"], "has the text '2', which is none of 10, 20"),
        ("set('a', 'b')", ["c"], "has the text 'c', which is not a,b or a part of that in its order"),
        ("set('a', 'b')", ["3"], "has the text '3', which is not a,b"),
        ("set('a', 'b')", ["b,a"], "has the text 'b,a', which is not a,b"),
        ("char(5)", ["a", "b "], "has a text with blanks at its end, which the database leaves out of a CHAR"),
        ("binary(4)", [b"abc"], "has bytes that are shorter than 4"),
        ("varbinary(2)", [b"abc"], "Data too long"),
        ("json", ["{"], "CONSTRAINT `"),
        ("uuid", ["x"], "Incorrect uuid value"),
        ("int CHECK (value > 0)", [0], "CONSTRAINT `"),
    ],
)
def test_mariadb_changes_no_value_without_an_error_even_where_its_server_is_not_strict(
    maria: Table, mariadb: MariaServer, checkpoint: Path, kind: str, column: Any, said: str
) -> None:
    maria.run("DROP TABLE {t}")
    maria.create(f"value {kind}")
    mode = mariadb.ask("SELECT @@GLOBAL.sql_mode")[0][0]
    mariadb.ask("SET GLOBAL sql_mode = ''")
    try:
        assert said in refused(maria.sink(checkpoint), {"value": column})
    finally:
        mariadb.ask(f"SET GLOBAL sql_mode = '{mode}'")
    assert maria.values() == []


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI", "EMPTY_STRING_IS_NULL", "ORACLE"])
def test_texts_and_bytes_arrive_in_each_mode_of_the_server(
    maria: Table, mariadb: MariaServer, checkpoint: Path, mode: str
) -> None:
    maria.run("ALTER TABLE {t} ADD raw blob, ADD `order` int")
    before = mariadb.ask("SELECT @@GLOBAL.sql_mode")[0][0]
    mariadb.ask(f"SET GLOBAL sql_mode = '{mode}'")
    texts = ["", "\\", "'", '"', "\\'; --", "a\nb", "%s", "||"]
    try:
        raw = pa.array([text.encode() for text in texts])
        write(maria.sink(checkpoint), {"value": texts, "raw": raw, "order": [*range(len(texts))]})
    finally:
        mariadb.ask(f"SET GLOBAL sql_mode = '{before}'")
    found = mariadb.ask(f"SELECT HEX(value), HEX(raw) FROM {maria.name} ORDER BY `order`")
    assert [tuple(bytes.fromhex(one).decode() for one in row) for row in found] == [(text, text) for text in texts]


@pytest.mark.parametrize("scheme", ["mysql+pymysql", "mariadb+pymysql"])
def test_mariadb_is_written_under_both_of_its_names(maria: Table, checkpoint: Path, scheme: str) -> None:
    maria.run(f"DROP TABLE IF EXISTS {BATCHES}")
    write(maria.sink(checkpoint, url=maria.url.replace("mariadb+pymysql", scheme)), {"value": ["a"]})
    engine = maria.run(f"SELECT engine FROM information_schema.tables WHERE table_name = '{BATCHES}'")
    assert (maria.values(), engine) == (["a"], [("InnoDB",)])


def test_decimals_bits_and_small_floats_keep_all_digits(maria: Table, mariadb: MariaServer, checkpoint: Path) -> None:
    maria.run("ALTER TABLE {t} ADD price decimal(38,18), ADD flag bit(1), ADD mask bit(8), ADD small float")
    many = [Decimal("12345678901234567890.123456789012345678"), Decimal("0.000000000000000001")]
    columns = {
        "price": pa.array(many, pa.decimal128(38, 18)),
        "flag": pa.array([True, False]),
        "mask": pa.array([255, 0], pa.int16()),
        "small": pa.array([0.1, 2.5], pa.float32()),
    }
    write(maria.sink(checkpoint), columns)
    found = mariadb.ask(f"SELECT price, flag + 0, mask + 0, small FROM {maria.name} ORDER BY price DESC")
    assert found == [[f"{many[0]:f}", "1", "255", "0.1"], [f"{many[1]:f}", "0", "0", "2.5"]]


def test_members_of_a_set_and_fixed_texts_arrive(maria: Table, checkpoint: Path) -> None:
    maria.run("ALTER TABLE {t} ADD some set('a', 'b', 'c'), ADD fixed char(3)")
    write(maria.sink(checkpoint), {"some": ["", "b", "a,c", None], "fixed": ["", " a", "abc", None]})

    assert sorted(maria.run("SELECT some, fixed FROM {t}"), key=str) == [
        ("", ""),
        ("a,c", "abc"),
        ("b", " a"),
        (None, None),
    ]


def test_a_zero_in_a_counting_column_stays_a_zero(maria: Table, mariadb: MariaServer, checkpoint: Path) -> None:
    maria.run("ALTER TABLE {t} ADD id int AUTO_INCREMENT PRIMARY KEY")
    write(maria.sink(checkpoint), {"id": [0, 5], "value": ["a", "b"]})
    assert mariadb.ask(f"SELECT id, value FROM {maria.name} ORDER BY id") == [["0", "a"], ["5", "b"]]
    assert "column id is NOT NULL in the table" in refused(
        maria.sink(checkpoint), {"id": pa.array([None], pa.int32())}, 1
    )


@pytest.mark.parametrize("kind", ["MyISAM", "Aria", "MEMORY"])
def test_a_table_without_transactions_is_refused(maria: Table, checkpoint: Path, kind: str) -> None:
    maria.run(f"ALTER TABLE {{t}} ENGINE = {kind}, MODIFY value varchar(9)")
    assert f"{maria.name} is a table of {kind}, which has no transactions" in refused(
        maria.sink(checkpoint), {"value": ["a"]}
    )
    assert maria.values() == []


def test_a_view_and_a_table_of_batches_without_transactions_are_refused(maria: Table, checkpoint: Path) -> None:
    sink = maria.sink(checkpoint)
    write(sink, {"value": ["a"]})
    maria.run(f"ALTER TABLE {BATCHES} ENGINE = MyISAM")
    try:
        assert f"{BATCHES} is a table of MyISAM" in refused(sink, {"value": ["b"]}, 1)
    finally:
        maria.run(f"ALTER TABLE {BATCHES} ENGINE = InnoDB")
    maria.run(f"CREATE OR REPLACE VIEW v_{maria.name} AS SELECT * FROM {maria.name}")
    assert "is a view, and may have no transactions" in refused(
        maria.sink(checkpoint, table=f"v_{maria.name}"), {"value": ["b"]}, 1
    )
    maria.run(f"DROP VIEW v_{maria.name}")


def test_constraints_that_wait_for_the_commit_are_checked_before_the_decision(
    of_postgres: Table, checkpoint: Path
) -> None:
    of_postgres.run("ALTER TABLE {t} ADD CONSTRAINT one UNIQUE (value) DEFERRABLE INITIALLY DEFERRED")
    assert "duplicate key value" in refused(of_postgres.sink(checkpoint), {"value": ["a", "a"]})


def test_foreign_keys_are_checked_before_the_decision(maria: Table, checkpoint: Path) -> None:
    maria.run(f"CREATE TABLE parents_{maria.name} (id int PRIMARY KEY)")
    maria.run(f"ALTER TABLE {{t}} ADD parent int, ADD FOREIGN KEY (parent) REFERENCES parents_{maria.name} (id)")
    assert "foreign key constraint fails" in refused(maria.sink(checkpoint), {"parent": [7]})
    maria.run("DROP TABLE {t}")
    maria.run(f"DROP TABLE parents_{maria.name}")


# Schemas that change, other drivers, other checkpoints.


def test_a_table_may_change_between_batches(table: Table, checkpoint: Path) -> None:
    write(table.sink(checkpoint), {"value": ["a"]})
    table.run("ALTER TABLE {t} ADD COLUMN more int")
    write(table.sink(checkpoint), {"value": ["b"]}, 1)
    write(table.sink(checkpoint), {"value": ["c"], "more": [1]}, 2)
    table.run("ALTER TABLE {t} RENAME COLUMN more TO less")
    assert "the table has no column more" in refused(table.sink(checkpoint), {"more": [1]}, 3)
    write(table.sink(checkpoint), {"value": ["d"], "less": [2]}, 3)
    table.run("ALTER TABLE {t} DROP COLUMN less")
    assert "the table has no column less" in refused(table.sink(checkpoint), {"less": [1]}, 4)
    assert sorted(table.values()) == ["a", "b", "c", "d"]


CHANGES = [
    ("RENAME COLUMN value TO other", "RENAME COLUMN other TO value", "has no column value"),
    ("ADD COLUMN must int NOT NULL", "DROP COLUMN must", "column must is NOT NULL"),
]


@pytest.mark.parametrize(("change", "back", "said"), CHANGES)
def test_a_table_that_changes_behind_the_decision_holds_the_batch_until_it_fits(
    table: Table, checkpoint: Path, change: str, back: str, said: str
) -> None:
    sink = table.sink(checkpoint)
    parts = prepared(sink, {"value": ["a"]})
    if table.engine.dialect.name == "sqlite" and "NOT NULL" in change:
        table.run("DROP TABLE {t}")
        table.create("value text, must int NOT NULL")
    else:
        table.run(f"ALTER TABLE {{t}} {change}")
    with pytest.raises(SinkError, match=said):
        sink.commit(0, parts)
    table.run(f"ALTER TABLE {{t}} {back}")
    table.run("ALTER TABLE {t} ADD COLUMN free int")

    sink.commit(0, parts)
    assert table.values() == ["a"]


def test_a_type_that_changes_behind_the_decision_changes_no_value(maria: Table, checkpoint: Path) -> None:
    maria.run("ALTER TABLE {t} MODIFY value datetime(6)")
    sink = maria.sink(checkpoint)
    parts = prepared(sink, {"value": pa.array([AT])})
    maria.run("ALTER TABLE {t} MODIFY value datetime")
    with pytest.raises(SinkError, match="fractions of a second"):
        sink.commit(0, parts)
    maria.run("ALTER TABLE {t} MODIFY value datetime(6)")
    sink.commit(0, parts)
    assert maria.run("SELECT value FROM {t}") == [(AT.replace(tzinfo=None),)]


def test_nobody_changes_the_table_while_a_batch_is_tried(maria: Table, checkpoint: Path) -> None:
    sink = maria.sink(checkpoint)
    parts = prepared(sink, {"value": ["a"]})
    with sink.pre_commit(0, parts):
        with maria.engine.connect() as other:
            other.exec_driver_sql("SET lock_wait_timeout = 1")
            with pytest.raises(sa.exc.OperationalError, match="Lock wait timeout"):
                other.exec_driver_sql(f"ALTER TABLE {maria.name} RENAME COLUMN value TO other")
        sink.commit(0, parts)
    assert maria.values() == ["a"]


def test_two_queries_of_one_name_and_a_deleted_checkpoint_are_kept_apart(table: Table, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for batch in range(2):
        write(table.sink(ours), {"value": [f"ours {batch}"]}, batch)
        write(table.sink(theirs), {"value": [f"theirs {batch}"]}, batch)
    shutil.rmtree(ours)
    write(table.sink(ours), {"value": ["again"]})

    assert sorted(table.values()) == ["again", "ours 0", "ours 1", "theirs 0", "theirs 1"]


def test_a_checkpoint_that_is_older_than_the_table_is_refused(table: Table, checkpoint: Path) -> None:
    write(table.sink(checkpoint), {"value": ["a"]})
    backup = shutil.copytree(checkpoint, checkpoint.with_name("backup"))
    write(table.sink(checkpoint), {"value": ["b"]}, 1)
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)

    assert "has batch 1 already" in refused(table.sink(checkpoint), {"value": ["other"]}, 1)
    write(table.sink(checkpoint), {"value": ["c"]}, 2)
    assert sorted(table.values()) == ["a", "b", "c"]


def test_an_old_driver_and_its_successor_take_turns(table: Table, checkpoint: Path) -> None:
    old, new = table.sink(checkpoint), table.sink(checkpoint, lock_timeout=1.0)
    write(old, {"value": ["before"]})
    parts = prepared(old, {"value": ["a"]}, 1)
    with old.pre_commit(1, parts):
        with pytest.raises(SinkError, match="what other sessions have locked"):
            new.commit(1, parts)
        old.commit(1, parts)
    # What the successor would commit is there.
    parts = prepared(new, {"value": ["b"]}, 2)
    new.commit(2, parts)
    late = [old.prepare(parts[0].transaction, iter([pa.record_batch({"value": ["b"]})]))]
    old.commit(2, late)
    assert sorted(table.values()) == ["a", "b", "before"]


def test_two_drivers_that_begin_at_the_same_time_commit_a_batch_once(table: Table, checkpoint: Path) -> None:
    if table.engine.dialect.name != "sqlite":
        table.run(f"DROP TABLE IF EXISTS {BATCHES}")
    sink = table.sink(checkpoint)
    parts = prepared(sink, {"value": ["a"]})
    identity = sink._stage.identity()
    failures: list[Exception] = []
    gate = threading.Barrier(4)

    def commit() -> None:
        copy = pickle.loads(pickle.dumps(sink))
        gate.wait(SECONDS)
        try:
            with copy.table().insert(0, identity, copy._stage.read(parts)) as inserted:
                inserted.commit()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert table.values() == ["a"]


def test_what_another_session_has_locked_is_waited_for_and_then_aborts_the_batch(
    maria: Table, of_postgres: Table, checkpoint: Path
) -> None:
    for table in (maria, of_postgres):
        table.run("DROP TABLE {t}")
        table.create("value varchar(20) PRIMARY KEY")
        sink = table.sink(checkpoint.with_name(table.name), lock_timeout=1.0)
        with sa.create_engine(table.url).connect() as other:
            other.exec_driver_sql(f"INSERT INTO {table.name} VALUES ('a')")
            begun = time.monotonic()
            assert "what other sessions have locked" in refused(sink, {"value": ["a"]})
            assert 0.5 < time.monotonic() - begun < SECONDS
        write(sink, {"value": ["a"]})
        assert table.values() == ["a"]


# Connections and servers that are lost.


def sessions(table: Table) -> list[str]:
    """The ids of MariaDB's sessions that have a transaction open."""
    return [str(row[0]) for row in table.run("SELECT trx_mysql_thread_id FROM information_schema.innodb_trx")]


def test_a_connection_that_is_lost_behind_the_decision_is_no_loss(maria: Table, checkpoint: Path) -> None:
    sink = maria.sink(checkpoint)
    parts = prepared(sink, {"value": ["a", "b"]})
    with sink.pre_commit(0, parts):
        for number in sessions(maria):
            maria.run(f"KILL CONNECTION {number}")
        sink.commit(0, parts)

    assert maria.values() == ["a", "b"]


def test_a_commit_whose_answer_is_lost_is_looked_for(
    table: Table, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = InsertedBatch.commit

    def without_answer(self: InsertedBatch) -> None:
        monkeypatch.setattr(InsertedBatch, "commit", commit)
        self.commit()
        raise sa.exc.OperationalError("COMMIT", {}, ConnectionResetError("lost"))

    sink = table.sink(checkpoint)
    parts = prepared(sink, {"value": ["a", "b"]})
    with sink.pre_commit(0, parts):
        monkeypatch.setattr(InsertedBatch, "commit", without_answer)
        sink.commit(0, parts)

    assert table.values() == ["a", "b"]


@pytest.fixture(scope="module")
def own_mariadb() -> Iterator[MariaServer]:
    """A server that a test may kill and start."""
    server = a_mariadb()
    server.start()
    yield server
    server.remove()


def test_a_server_that_is_killed_with_the_transaction_open_gets_the_batch_when_it_is_back(
    own_mariadb: MariaServer, checkpoint: Path
) -> None:
    for table in with_table(own_mariadb.url()):
        sink = table.sink(checkpoint)
        parts = prepared(sink, {"value": ["a", "b"]})
        with sink.pre_commit(0, parts):
            own_mariadb.stop()
            with pytest.raises(SinkError, match=r"could not take batch 0 .*Can't connect"):
                sink.commit(0, parts)
        own_mariadb.start()
        assert table.values() == []
        sink.commit(0, parts)
        assert table.values() == ["a", "b"]
        # Also where it is not decided yet.
        with sink.pre_commit(1, prepared(sink, {"value": ["c"]}, 1)):
            own_mariadb.stop()
        own_mariadb.start()
        assert table.values() == ["a", "b"]


def test_a_server_that_is_killed_around_a_commit_has_each_batch_once(
    own_mariadb: MariaServer, checkpoint: Path
) -> None:
    count = 2_000
    for table in with_table(own_mariadb.url(), "batch int, n int, filler text"):
        sink = table.sink(checkpoint)
        for batch, delay in enumerate([0.0, 0.0005, 0.001, 0.002, 0.004, 0.02]):
            parts = prepared(
                sink, {"batch": [batch] * count, "n": [*range(count)], "filler": ["x" * 500] * count}, batch
            )
            with sink.pre_commit(batch, parts):
                killer = threading.Timer(delay, own_mariadb.stop)
                killer.start()
                # It has an answer, or none although the batch is there, or is too late.
                with suppress(SinkError):
                    sink.commit(batch, parts)
                killer.join()
            own_mariadb.start()
            sink.commit(batch, parts)
            assert table.run("SELECT batch, COUNT(*), COUNT(DISTINCT n) FROM {t} GROUP BY batch ORDER BY batch") == [
                (one, count, count) for one in range(batch + 1)
            ]


# Rights, URLs and packages.


def test_a_user_without_rights_is_told_what_to_do(maria: Table, mariadb: MariaServer, checkpoint: Path) -> None:
    maria.run(f"DROP TABLE IF EXISTS {BATCHES}")
    password = "pass/word:of-tests"
    mariadb.ask(f"CREATE OR REPLACE USER clerk@'127.0.0.1' IDENTIFIED BY '{password}'")
    mariadb.ask(
        f"GRANT SELECT, UPDATE ON shop.* TO clerk@'127.0.0.1'; GRANT INSERT ON {maria.name} TO clerk@'127.0.0.1'"
    )
    url = mariadb.url("clerk", "pass%2Fword%3Aof-tests")
    sink = maria.sink(checkpoint, url=url)

    said = refused(sink, {"value": ["a"]})
    assert "INSERT, CREATE command denied" in said or "CREATE command denied" in said
    statement = said.split("or run: ")[1]
    mariadb.ask(statement)
    assert f"INSERT command denied to user 'clerk'@'localhost' for table `shop`.`{BATCHES}`" in refused(
        sink, {"value": ["a"]}
    )
    mariadb.ask(f"GRANT INSERT ON {BATCHES} TO clerk@'127.0.0.1'")
    write(sink, {"value": ["a"]})
    assert maria.values() == ["a"]

    wrong = maria.sink(checkpoint, url=mariadb.url("clerk", "not-the-password"))
    said = refused(wrong, {"value": ["a"]}, 1)
    assert "Access denied for user 'clerk'" in said
    assert "not-the-password" not in said


def test_a_url_that_makes_each_statement_a_transaction_does_not(table: Table, checkpoint: Path) -> None:
    if table.engine.dialect.name == "sqlite":
        pytest.skip("SQLite's URLs have no such setting")
    sink = table.sink(checkpoint, url=f"{table.url}?autocommit=true")
    with sink.pre_commit(0, prepared(sink, {"value": ["a"]})):
        assert table.values() == []
    assert table.values() == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("jdbc:mysql://h/d?password=secret", r"jdbc: is the form of Java; expected mysql\+pymysql://user:password@"),
        ("jdbc:postgresql://h/secret", r"expected postgresql\+psycopg://user"),
        ("jdbc:db2://h/secret", r"expected dialect\+driver://user"),
        ("mysql+pymysql://u:secret@h:port/d", "the URL cannot be read, or SQLAlchemy has no such dialect"),
        ("secret", "the URL cannot be read"),
        ("nobase://u:secret@h/d", "SQLAlchemy has no such dialect"),
        ("sqlite+aiosqlite:///secret", "needs aiosqlite|is for programs with an event loop"),
    ],
)
def test_a_url_that_cannot_work_is_refused_when_the_writer_is_made(url: str, said: str, checkpoint: Path) -> None:
    with pytest.raises(ConfigurationError, match=said) as raised:
        sql_sink.sql(url, table="rows", checkpoint=str(checkpoint), name="orders")
    assert "secret" not in str(raised.value)


def test_a_url_of_an_event_loop_is_refused(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlalchemy.dialects.postgresql.psycopg.dialect.is_async", True)
    with pytest.raises(ConfigurationError, match="is for programs with an event loop"):
        sql_sink.sql("postgresql+psycopg://h/d", table="rows", checkpoint=str(checkpoint), name="orders")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "mysql://u:secret@h/d",
            "begins with mysql needs MySQLdb, which is not installed; install the package that has it",
        ),
        (
            "postgresql+psycopg://h/d",
            r"needs psycopg, which is not installed; run: pip install 'wallaroo-spark\[postgres\]'",
        ),
    ],
)
def test_a_missing_driver_package_is_named(
    url: str, said: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MySQLdb", "psycopg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(PackageMissingError, match=said) as raised:
        sql_sink.sql(url, table="rows", checkpoint=str(checkpoint), name="orders")
    assert "secret" not in str(raised.value)


def test_without_sqlalchemy_the_extra_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wallaroo_spark.sinks.stores.sql.table")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(PackageMissingError, match=r"sinks\.sql needs sqlalchemy.*wallaroo-spark\[sql\]"):
        sql_sink.sql("env:NOTHING", table="rows", checkpoint=str(checkpoint), name="orders")


def test_a_secret_is_read_when_the_database_is_needed(
    lite: Table, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sql_sink.sql("env:URL_OF_TESTS", table=lite.name, checkpoint=str(checkpoint), name="orders").sink
    assert isinstance(sink, SqlSink)
    monkeypatch.setenv("URL_OF_TESTS", lite.url)
    write(sink, {"value": ["a"]})
    assert lite.values() == ["a"]


def test_nested_rows_are_refused_in_the_task(lite: Table, checkpoint: Path) -> None:
    assert "which cannot be written; turn it into a string" in refuses(lite.sink(checkpoint), {"value": [{"a": 1}]})
