"""Queries of Spark Connect's clients and of Declarative Pipelines, beside a receiver in the server's driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException

from tests.receiver.drivers import Drivers
from tests.receiver.support import COOKIE, Feeders, numbered, payloads
from tests.waiting import SECONDS, eventually
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]


class Server:
    """The addresses of one server, and those of the workers in it."""

    def __init__(self, directory: Path) -> None:
        serving = directory / "serving.json"
        eventually(serving.exists)
        self.directory = directory
        found = json.loads(serving.read_text(encoding="utf-8"))
        self.address, self.workers = found["server"], ",".join(found["workers"])

    def client(self) -> SparkSession:
        """A session of a client of its own."""
        from pyspark.sql.connect.session import SparkSession

        return SparkSession.builder.remote(self.address).create()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with a receiver for the tests of this file; each brings its own checkpoint, instances and streams."""
    directory = tmp_path_factory.mktemp("server")
    with Drivers(directory, "tests.receiver.connect_server") as drivers:
        process = drivers.launch(str(directory))
        yield Server(directory)
        drivers.end(process)


def rows(client: SparkSession) -> Any:
    """The receiver's rows, as everybody who knows Spark reads them."""
    return client.readStream.format("wallaroo").option("receiver", "orders").load()


def started(client: SparkSession, table: Path, checkpoint: Path) -> Any:
    write = rows(client).writeStream.format("parquet").option("path", str(table))
    return write.option("checkpointLocation", str(checkpoint)).start()


def values(client: SparkSession, table: Path, stream: str) -> list[bytes]:
    found = client.read.parquet(str(table)).where(f"stream = '{stream}'").orderBy("message_id").collect()
    return [bytes(row.value) for row in found]


def test_a_query_of_a_client_is_adopted_and_another_clients_query_goes_on(
    server: Server, feeders: Feeders, tmp_path: Path
) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    connector = feeders.connect("client", server.workers)
    for last in (20, 40):
        client = server.client()
        query = started(client, table, checkpoint)
        assert feeders.feed(connector, numbered("clients", 1, last), end=False).result(SECONDS).acknowledged
        query.stop()
        assert values(client, table, "clients") == payloads("clients", 1, last)
        client.stop()


def test_a_second_client_is_told_why_its_query_fails_and_the_first_goes_on(
    server: Server, feeders: Feeders, tmp_path: Path
) -> None:
    first, second = server.client(), server.client()
    query = started(first, tmp_path / "first", tmp_path / "checkpoint-1")
    feeders.feed(feeders.connect("first", server.workers), numbered("first", 1, 5)).result(SECONDS)
    other = started(second, tmp_path / "second", tmp_path / "checkpoint-2")
    with pytest.raises(StreamingQueryException, match=f"the receiver feeds query {query.id}, not {other.id}"):
        other.awaitTermination(int(SECONDS))
    feeders.feed(feeders.connect("second", server.workers), numbered("first", 6, 9)).result(SECONDS)
    query.stop()

    assert values(first, tmp_path / "first", "first") == payloads("first", 1, 9)
    first.stop()
    second.stop()


def test_a_receiver_of_a_client_starts_its_query_itself(
    server: Server, own_redis: EmbeddedRedis, feeders: Feeders, tmp_path: Path
) -> None:
    client = server.client()
    options = {"workers": 1, "host": "127.0.0.1", "registry": own_redis.url, "cookie": COOKIE, "lease_seconds": 3}
    with Receiver(client, "mine", **options) as receiver:
        write = receiver.stream().writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = write.option("checkpointLocation", str(tmp_path / "refused")).start()
        with pytest.raises(StreamingQueryException, match="Spark Connect does not tell a client where the checkpoint"):
            query.awaitTermination(int(SECONDS))
        receiver.start_query(write, checkpoint=str(tmp_path / "checkpoint"))
        feeders.feed(feeders.connect("mine", receiver.addresses[0]), numbered("mine", 1, 20)).result(SECONDS)
    assert values(client, tmp_path / "table", "mine") == payloads("mine", 1, 20)
    client.stop()


PIPELINE = {
    "spark-pipeline.yaml": """\
name: orders
storage: {directory}/storage
libraries:
  - glob:
      include: transformations/**
""",
    "transformations/incoming.py": """\
from pyspark import pipelines
from pyspark.sql import SparkSession


@pipelines.temporary_view
def incoming():
    rows = SparkSession.active().readStream.format("wallaroo").option("receiver", "orders")
    return rows.option("quietSeconds", "5s").load()
""",
    "transformations/lines.sql": """\
CREATE STREAMING TABLE lines AS
SELECT stream, message_id, CAST(value AS STRING) AS line FROM STREAM incoming
""",
}


def run_pipeline(server: Server, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the pipeline of a directory with Spark's own program."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    command = [str(program), "run", "--remote", server.address, "--spec", "spark-pipeline.yaml", *arguments]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )


def test_a_streaming_table_of_a_pipeline_has_the_rows_and_its_last_batch_is_acknowledged(
    server: Server, feeders: Feeders, tmp_path: Path
) -> None:
    for name, text in PIPELINE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("{directory}", tmp_path.as_uri()), encoding="utf-8")
    connector = feeders.connect("pipeline", server.workers)
    for last in (30, 50):
        run = feeders.run(lambda: run_pipeline(server, tmp_path))
        fed = feeders.feed(connector, numbered("pipeline", 1, last), end=False)
        ended = run.result()
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert fed.result(SECONDS).acknowledged
        # A session remembers the files of a table that it has read.
        client = server.client()
        found = client.table("lines").where("stream = 'pipeline'").orderBy("message_id").collect()
        assert [row.line.encode() for row in found] == payloads("pipeline", 1, last)
        client.stop()
