"""Spark's own rows and types reach every store by its writer, and a batch that is run again reaches it once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis as redis_client
from deltalake import DeltaTable

from proving.servers.kafka import KafkaServer
from proving.servers.mariadb import MariaServer
from proving.servers.postgres import PostgresServer
from tests.sinks.remote import terse
from tests.sinks.stores.kafka_reader import records
from wallaroo_spark import sinks
from wallaroo_spark.errors import ConfigurationError, SinkError
from wallaroo_spark.registry.embedded import lasting_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """A thousand rows in three partitions, with a type of each kind."""
    return spark.range(0, ROWS, 1, 3).selectExpr(
        "id",
        "concat('ä ', id) AS value",
        "if(id % 2 = 0, null, id / 4) AS half",
        "cast(id AS decimal(12, 2)) AS price",
        "encode(cast(id AS string), 'UTF-8') AS raw",
        "timestamp_seconds(id) AS at",
        "date '2026-01-02' AS day",
        "id = 1 AS first",
    )


def deliver_twice(writer: sinks.BatchWriter, rows: DataFrame, count: Callable[[], int]) -> None:
    """Run a batch, run it again as a process that was restarted does, and then the next."""
    assert count() == 0
    writer(rows, 0)
    assert count() == ROWS
    sinks.BatchWriter(writer.sink, writer.checkpoint)(rows, 0)
    assert count() == ROWS
    writer(rows, 1)
    assert count() == 2 * ROWS


def test_files(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    place = tmp_path / "out"
    writer = sinks.files(str(place), checkpoint=str(tmp_path / "checkpoint"), name="orders")
    rows = rows.selectExpr("*", "id AS `a.b`")
    with pytest.raises(ConfigurationError, match="the batch has 2 columns id: rename all but one"):
        writer(rows.selectExpr("id", "id"), 0)

    deliver_twice(writer, rows, lambda: len(list(place.glob("batch=*"))) and spark.read.parquet(str(place)).count())

    found = spark.read.parquet(str(place))
    assert found.filter("batch = 1").drop("batch").exceptAll(rows).isEmpty()
    assert found.schema.simpleString() == rows.schema.simpleString().removesuffix(">") + ",batch:int>"


def test_delta(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    place = tmp_path / "table"
    writer = sinks.delta(str(place), checkpoint=str(tmp_path / "checkpoint"), name="orders")
    deliver_twice(writer, rows, lambda: (place.exists() and DeltaTable(place).count()) or 0)

    found = spark.read.parquet(*DeltaTable(place).file_uris())
    assert found.exceptAll(rows).exceptAll(rows).isEmpty()
    assert found.schema.simpleString() == rows.schema.simpleString()


def test_a_connector_sink_of_another_making(rows: DataFrame, tmp_path: Path) -> None:
    """It says 0 once it was started again: where its outputs end is in the log, and goes to the tasks with the sink."""
    to, port = tmp_path / "out", lasting_port()
    to.mkdir()
    address = f"127.0.0.1:{port}"
    settings: dict[str, Any] = {"version": terse.VERSION, "cookie": terse.COOKIE}
    writer = sinks.connector(address, checkpoint=str(tmp_path / "checkpoint"), name="spark", **settings)
    for batch in range(3):
        program = subprocess.Popen([sys.executable, "-m", "tests.sinks.remote.terse", str(to), str(port)])
        try:
            for _ in range(2):
                sinks.BatchWriter(writer.sink, writer.checkpoint)(rows.selectExpr("cast(id AS string) AS value"), batch)
        finally:
            program.kill()
            program.wait()

    assert terse.deaths(to) == []
    assert sorted(map(int, terse.committed(to, "spark"))) == sorted([*range(ROWS)] * 3)


@pytest.mark.parametrize("mode", ["two-phase", "idempotent"])
def test_postgres(rows: DataFrame, postgres: PostgresServer, tmp_path: Path, mode: str) -> None:
    table = f'"spark {mode}"'
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {table} (id bigint, value text, half float8, price numeric(12, 2), raw bytea, "
            "at timestamptz, day date, first bool)"
        )
        settings: dict[str, Any] = {"checkpoint": str(tmp_path), "name": f"spark-{mode}", "mode": mode}
        writer = sinks.postgres(postgres.dsn, table=table, **settings)
        deliver_twice(writer, rows, lambda: (connection.execute(f"SELECT count(*) FROM {table}").fetchone() or [0])[0])

        right = (
            f"SELECT count(*) FROM {table} WHERE value = 'ä ' || id AND price = id"
            " AND raw = convert_to(id::text, 'UTF8') AND at = to_timestamp(id)"
            " AND day = '2026-01-02' AND first = (id = 1)"
            " AND half IS NOT DISTINCT FROM CASE WHEN id % 2 = 1 THEN id / 4.0 END"
        )
        assert connection.execute(right).fetchone() == (2 * ROWS,)

        with pytest.raises(SinkError, match=r"batch 2 is aborted, because of partition 0: .*no column other"):
            writer(rows.withColumnRenamed("value", "other"), 2)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (2 * ROWS,)


def test_sql(rows: DataFrame, mariadb: MariaServer, tmp_path: Path) -> None:
    """Read by MariaDB's own client."""
    mariadb.ask(
        "CREATE TABLE spark (id bigint PRIMARY KEY AUTO_INCREMENT, number bigint, value text, half double, "
        "price decimal(12, 2), raw blob, at datetime, day date, first bool)"
    )

    def count(where: str = "TRUE") -> int:
        return int(mariadb.ask(f"SELECT COUNT(*) FROM spark WHERE {where}")[0][0])

    writer = sinks.sql(mariadb.url(), table="spark", checkpoint=str(tmp_path), name="spark")
    columns = rows.withColumnRenamed("id", "number")
    deliver_twice(writer, columns, count)
    right = (
        "value = CONCAT('ä ', number) AND price = number AND raw = CAST(number AS CHAR) AND day = '2026-01-02'"
        " AND at = TIMESTAMPADD(SECOND, number, '1970-01-01') AND first = (number = 1)"
        " AND half <=> IF(number % 2 = 1, number / 4, NULL)"
    )
    assert count(right) == 2 * ROWS

    with pytest.raises(
        SinkError, match=r"could not take batch 2 in table spark: .*Duplicate entry '.+' for key 'PRIMARY'"
    ):
        writer(columns.withColumn("id", columns.number), 2)
    assert count() == 2 * ROWS


def test_kafka(rows: DataFrame, kafka: KafkaServer, tmp_path: Path) -> None:
    kafka.create("spark", partitions=2)
    writer = sinks.kafka(kafka.bootstrap, topic="spark", checkpoint=str(tmp_path), name="spark")
    columns = rows.selectExpr("value", "raw AS key", "array(struct('n' AS key, raw AS value)) AS headers")

    deliver_twice(writer, columns, lambda: len(records(kafka.bootstrap, "spark")))

    found = {(m.key(), m.value(), tuple(m.headers() or ())) for m in records(kafka.bootstrap, "spark")}
    text = [str(number) for number in range(ROWS)]
    assert found == {(one.encode(), f"ä {one}".encode(), (("n", one.encode()),)) for one in text}


def test_redis(rows: DataFrame, redis_url: str, tmp_path: Path) -> None:
    with redis_client.Redis.from_url(redis_url) as client:
        writer = sinks.redis(redis_url, stream="spark", checkpoint=str(tmp_path), name="spark")
        deliver_twice(writer, rows, lambda: client.xlen("spark"))

        fields = client.xrange("spark", count=2)[1][1]
    assert fields == {
        b"id": b"1",
        b"value": "ä 1".encode(),
        b"half": b"0.25",
        b"price": b"1.00",
        b"raw": b"1",
        b"at": b"1970-01-01 00:00:01.000000Z",
        b"day": b"2026-01-02",
        b"first": b"true",
    }
