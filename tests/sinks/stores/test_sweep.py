"""The crash-point sweep of the stores: drivers and tasks die at every step."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable
from pyarrow import dataset, parquet

from proving.servers.kafka import KafkaServer
from proving.servers.mariadb import MariaServer
from proving.servers.postgres import PostgresServer
from tests.sinks.stores.iceberg_lake import Lake
from tests.sinks.stores.kafka_reader import records
from tests.sinks.stores.stream_reader import declare, payloads
from tests.sinks.sweep import CASES, Case, Lives, Subject, sweep
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.settings import IDEMPOTENT, TWO_PHASE
from wallaroo_spark.sinks.stores.delta import DeltaSink
from wallaroo_spark.sinks.stores.files import FilesSink
from wallaroo_spark.sinks.stores.iceberg import IcebergSink
from wallaroo_spark.sinks.stores.kafka import KafkaSink
from wallaroo_spark.sinks.stores.postgres import PostgresSink
from wallaroo_spark.sinks.stores.redis import RedisSink
from wallaroo_spark.sinks.stores.sql.sink import SqlSink
from wallaroo_spark.sinks.stores.stream import StreamSink
from wallaroo_spark.steps import SinkStep

ME = "tests.sinks.stores.test_sweep"


def marks(case: Case) -> list[pytest.MarkDecorator]:
    """Two deaths of which the second concerns no store are gone through with some stores; with the others too if there
    is time.
    """
    return [] if case.then in (None, SinkStep.HALF_COMMITTED) else [pytest.mark.long]


IN_PART = [pytest.param(*one.values, id=one.id, marks=marks(one.values[0])) for one in CASES]
PER_MODE = [pytest.param(*one.values, TWO_PHASE, id=f"{one.id}-{TWO_PHASE}") for one in CASES]
PER_MODE += [pytest.param(*one.values, IDEMPOTENT, id=f"{one.id}-{IDEMPOTENT}", marks=one.marks) for one in IN_PART]


class KafkaRows(KafkaSink):
    """Takes of the sweep's rows the columns that Kafka has."""

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        return super().prepare(transaction, (piece.select(["partition", "value"]) for piece in rows))


class StreamRows(StreamSink):
    """Takes of the sweep's rows the payload."""

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        return super().prepare(transaction, (piece.select(["value"]) for piece in rows))


def files_sink(name: str, path: str, checkpoint: str) -> FilesSink:
    """The sink, in every process; so with those below."""
    return FilesSink(path, checkpoint=checkpoint, name=name)


def delta_sink(name: str, path: str, checkpoint: str) -> DeltaSink:
    return DeltaSink(path, checkpoint=checkpoint, name=name)


def iceberg_sink(name: str, catalog: dict[str, str], checkpoint: str) -> IcebergSink:
    return IcebergSink("shop.orders", catalog="lake", properties=catalog, checkpoint=checkpoint, name=name)


def postgres_sink(name: str, dsn: str, table: str, mode: str) -> PostgresSink:
    return PostgresSink(dsn, table=table, name=name, mode=mode)


def sql_sink(name: str, url: str, table: str, checkpoint: str) -> SqlSink:
    return SqlSink(url, table=table, checkpoint=checkpoint, name=name)


def redis_sink(name: str, url: str, stream: str, checkpoint: str) -> RedisSink:
    return RedisSink(url, checkpoint=checkpoint, name=name, stream=stream)


def stream_sink(name: str, application: str, checkpoint: str) -> StreamRows:
    return StreamRows(application, "shop/orders", checkpoint=checkpoint, name=name, type="t")


def kafka_sink(name: str, bootstrap: str, topic: str, checkpoint: str) -> KafkaRows:
    return KafkaRows(bootstrap, topic=topic, checkpoint=checkpoint, name=name)


def subject_of(factory: Callable[..., object], seen: Callable[[], Iterable[str]], **settings: str) -> Subject:
    return Subject(f"{ME}:{factory.__name__}", lambda _: seen(), settings)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with Lives(tmp_path_factory.mktemp("lives"), ME) as forking:
        yield forking


@pytest.fixture
def target() -> str:
    """A table, a stream or a topic of the case's own."""
    return f"sweep-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("case", CASES)
def test_files(lives: Lives, case: Case, tmp_path: Path) -> None:
    place = tmp_path / "out"

    def seen() -> list[str]:
        return [str(value) for value in dataset.dataset(place).to_table().column("value").to_pylist()]

    settings = {"path": str(place), "checkpoint": str(tmp_path / "checkpoint")}
    sweep(lives, subject_of(files_sink, seen, **settings), case, tmp_path)


@pytest.mark.parametrize("case", IN_PART)
def test_delta(lives: Lives, case: Case, tmp_path: Path) -> None:
    place = tmp_path / "table"

    def seen() -> list[str]:
        # A table has no order of its files; their names begin with the batch.
        found = [parquet.read_table(uri) for uri in sorted(DeltaTable(place).file_uris())]
        return [str(value) for rows in found for value in rows.column("value").to_pylist()]

    settings = {"path": str(place), "checkpoint": str(tmp_path / "checkpoint")}
    sweep(lives, subject_of(delta_sink, seen, **settings), case, tmp_path)
    log = DeltaTable(place)
    assert {path.name for path in place.glob("*.parquet")} == {Path(uri).name for uri in log.file_uris()}


@pytest.mark.parametrize("case", [pytest.param(*one.values, id=one.id, marks=pytest.mark.long) for one in CASES])
def test_iceberg(lives: Lives, case: Case, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = pa.schema([(name, pa.int64()) for name in ("batch", "partition", "number")] + [("value", pa.string())])
    lake.create(rows)

    def seen() -> list[str]:
        found = [path.removeprefix("file://") for path in lake.table().inspect.files()["file_path"].to_pylist()]
        return [str(value) for path in sorted(found) for value in parquet.read_table(path)["value"].to_pylist()]

    subject = Subject(
        f"{ME}:iceberg_sink", lambda _: seen(), {"catalog": lake.properties, "checkpoint": str(tmp_path / "checkpoint")}
    )
    sweep(lives, subject, case, tmp_path)
    assert len(list((tmp_path / "lake").rglob("data/*.parquet"))) == len(lake.table().inspect.files())


@pytest.mark.parametrize(("case", "mode"), PER_MODE)
def test_postgres(lives: Lives, case: Case, mode: str, postgres: PostgresServer, target: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE TABLE "{target}" (batch int, partition int, number int, value text)')

        def seen() -> list[str]:
            return [row[0] for row in connection.execute(f'SELECT value FROM "{target}"')]

        settings = {"dsn": postgres.dsn, "table": f'"{target}"', "mode": mode}
        sweep(lives, subject_of(postgres_sink, seen, **settings), case, tmp_path)
        left = connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
        left += connection.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'wallaroo_stage_%'").fetchall()
        assert left == []


@pytest.mark.parametrize("case", IN_PART)
def test_sql(lives: Lives, case: Case, mariadb: MariaServer, target: str, tmp_path: Path) -> None:
    mariadb.ask(f"CREATE TABLE `{target}` (batch int, `partition` int, number int, value text)")

    def seen() -> list[str]:
        return [row[0] for row in mariadb.ask(f"SELECT value FROM `{target}`")]

    settings = {"url": mariadb.url(), "table": target, "checkpoint": str(tmp_path / "checkpoint")}
    sweep(lives, subject_of(sql_sink, seen, **settings), case, tmp_path)
    mariadb.ask(f"DROP TABLE `{target}`")


@pytest.mark.parametrize("case", IN_PART)
def test_redis(lives: Lives, case: Case, redis_url: str, target: str, tmp_path: Path) -> None:
    with redis.Redis.from_url(redis_url) as client:

        def seen() -> list[str]:
            return [fields[b"value"].decode() for _, fields in client.xrange(target)]

        settings = {"url": redis_url, "stream": target, "checkpoint": str(tmp_path / "checkpoint")}
        sweep(lives, subject_of(redis_sink, seen, **settings), case, tmp_path)


@pytest.mark.parametrize("case", IN_PART)
def test_stream(lives: Lives, case: Case, tmp_path: Path) -> None:
    settings = {"application": declare(tmp_path), "checkpoint": str(tmp_path / "checkpoint")}
    subject = subject_of(stream_sink, lambda: payloads(settings["application"]), **settings)
    sweep(lives, subject, case, tmp_path)


@pytest.mark.parametrize("case", IN_PART)
def test_kafka(lives: Lives, case: Case, kafka: KafkaServer, target: str, tmp_path: Path) -> None:
    kafka.create(target, partitions=2)

    def seen() -> list[str]:
        return [(message.value() or b"").decode() for message in records(kafka.bootstrap, target)]

    settings = {"bootstrap": kafka.bootstrap, "topic": target, "checkpoint": str(tmp_path / "checkpoint")}
    sweep(lives, subject_of(kafka_sink, seen, **settings), case, tmp_path)
