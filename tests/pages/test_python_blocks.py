"""The Python of README and docs runs as it stands there, from the top of each page to its end."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.client.fake_gateway import FakeGateway
from tests.conftest import ROOT
from tests.doors.otlp.requests import answers
from tests.pages.reading import Reader, blocks_of, pages, python_blocks
from tests.pems import Pems
from tests.waiting import SECONDS, eventually
from wallaroo_spark import BlockingConnector, Receiver, aqueduct
from wallaroo_spark.client import Event
from wallaroo_spark.connector import CONNECTOR_CODES
from wallaroo_spark.errors import RemoteProtocolError
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.registry.embedded import lasting_port
from wallaroo_spark.testing import FakeWorker, LocalReceiver, run_function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIED = {
    "README.md",
    "docs/bridges.md",
    "docs/aqueduct.md",
    "docs/doors/kafka.md",
    "docs/doors/opentelemetry.md",
    "docs/pipelines/bulk.md",
    "docs/pipelines/clients.md",
    "docs/pipelines/in-spark.md",
    "docs/producers.md",
    "docs/pubsub.md",
    "docs/sinks.md",
    "docs/start/notebook.md",
    "docs/start/producer.md",
    "docs/start/tests.md",
    "docs/testing.md",
}
"""The pages whose Python a test below runs; that of the page on bridges is run in tests/bridges."""


def until(holds: Callable[[], Any], running: Future[None] | None = None) -> None:
    """Wait until something holds; an error of the block that is running meanwhile is raised."""

    def holds_or_failed() -> bool:
        if running is not None and running.done():
            running.result()
        return bool(holds())

    eventually(holds_or_failed, seconds=SECONDS)


def numbered_lines(after: int | None) -> list[tuple[int, bytes]]:
    """The messages of the reader's own program."""
    return [(number, b"line %d" % number) for number in range((after or 0) + 1, 101)]


@contextmanager
def sink_program(folder: Path) -> Iterator[str]:
    """``wallaroo-spark sink``; its address."""
    command = [str(Path(sys.executable).with_name("wallaroo-spark")), "sink", "--to", str(folder), "--port", "0"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        said = re.match(r"Listening on (\S+),", program.stdout.readline())
        assert said is not None
        yield said[1]
    finally:
        program.terminate()
        program.wait(SECONDS)
        assert program.stdout is not None
        program.stdout.close()


def test_every_page_with_python_is_tried() -> None:
    found = {str(page.relative_to(ROOT)) for page in pages() if python_blocks(page)}

    assert found == TRIED


def test_a_block_that_is_not_run_says_why() -> None:
    left_out = [str(block) for page in pages() for block in blocks_of(page) if block.left_out]

    assert left_out == []


@pytest.mark.spark
def test_the_page_for_notebooks(tmp_path: Path) -> None:
    """In a process of its own: it stops Spark."""
    blocks = [block.text for block in python_blocks(ROOT / "docs" / "start" / "notebook.md")]
    (tmp_path / "notebook.py").write_text("\n".join([*blocks, "receiver.stop()", "spark.stop()"]), encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=3 * SECONDS
    )

    assert ran.returncode == 0, ran.stderr
    assert re.findall(r"line \d+", ran.stdout) == [f"line {number}" for number in range(1, 11)]
    assert ran.stdout.splitlines()[-1] == "10"


def test_the_readme(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOKIE", "secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    port, telemetry = lasting_port((0, 1)), lasting_port()
    with EmbeddedRedis() as store, sink_program(tmp_path / "sink") as sink:
        places = {
            "redis://redis:6379": store.url,
            "/data/": f"{tmp_path}/",
            "port=7100": f"port={port}",
            "host-a:7100,host-b:7101": f"127.0.0.1:{port},127.0.0.1:{port + 1}",
            "sink-host:7200": sink,
            "4317": str(telemetry),
            # The session of the tests has four task slots, which is one less than two workers and two partitions take.
            "partitions=2": "partitions=1",
        }
        page = Reader("README.md", places, spark=spark, numbered_lines=numbered_lines)

        # Ten lines on each side.
        running = page.begin()
        until(lambda: "query" in page.names and page["query"].isActive, running)
        page.run()
        lines = spark.read.parquet(f"{tmp_path}/orders").orderBy("message_id").collect()
        assert [(row.instance, row.message_id, row.line) for row in lines] == [
            ("shop-1", number, line.decode()) for number, line in numbered_lines(None)
        ]
        page["query"].stop()
        running.result(SECONDS)

        # Telemetry.
        page.run()
        until(lambda: answers(f"127.0.0.1:{telemetry}"))
        provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
        exporter = OTLPSpanExporter(f"http://127.0.0.1:{telemetry}")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        provider.get_tracer("shop").start_span("GET /").end()
        provider.shutdown()
        page["telemetry"].stop()
        assert [(row.service_name, row.name) for row in spark.table("spans").collect()] == [("shop", "GET /")]
        spark.sql("DROP TABLE spans")

        # Publish results, and a subscriber.
        before, printed = page["query"], []
        page.names["print"] = lambda *shown: printed.append(shown)
        running = page.begin()
        until(lambda: page["query"] is not before and page["query"].isActive, running)
        following = page.begin()
        send_until(lambda: bool(printed), store.url)
        page["query"].stop()
        running.result(SECONDS)
        following.result(SECONDS)
        assert printed[0][1] == [{"instance": "shop-2", "count": 1}]

        # A transactional sink, in a program like the first.
        with Receiver(spark, "orders", workers=1, registry=store.url, cookie="secret") as receiver:
            rows = receiver.stream().selectExpr("instance", "message_id", "CAST(value AS STRING) AS line")
            page.names.update(receiver=receiver, orders=rows)
            page.places["/data/"] = f"{tmp_path}/with-a-sink/"
            page.run()
            send(store.url, "shop-3", [1, 2, 3])
            page["query"].stop()
        until(lambda: any((tmp_path / "sink").glob("orders-*.out")))
        page.finish()


def send(registry: str, instance: str, ids: list[int]) -> None:
    """Send some messages and wait until they are committed."""
    settings: dict[str, Any] = {"registry": registry, "cookie": "secret", "drain_timeout": SECONDS}
    with BlockingConnector("orders", instance=instance, **settings) as connector:
        connector.open("orders").send_many([b"line %d" % number for number in ids], ids)


def send_until(seen: Callable[[], bool], registry: str) -> None:
    """Send a message after the other, until a subscriber has seen one: it begins with an epoch that is yet to come."""
    numbers = iter(range(1, 1000))

    def seen_after_another() -> bool:
        send(registry, "shop-2", [next(numbers)])
        return seen()

    eventually(seen_after_another, seconds=SECONDS)


def test_the_page_on_the_kafka_door(spark: SparkSession, tmp_path: Path) -> None:
    page = Reader("docs/doors/kafka.md", {"9092": str(lasting_port(range(4))), "/data/": f"{tmp_path}/"})
    page.run()
    try:
        page.run()
        (row,) = spark.read.parquet(str(tmp_path / "orders")).collect()
    finally:
        page["receiver"].stop()
    page.finish()

    assert (row.topic, bytes(row.key), bytes(row.value)) == ("orders", b"shop-1", b'{"order": 1}')


def test_the_page_on_the_door_of_opentelemetry(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    port = lasting_port()
    page = Reader("docs/doors/opentelemetry.md", {"4317": str(port), "/data/": f"{tmp_path}/"})
    page.run()
    try:
        until(lambda: answers(f"127.0.0.1:{port}"))
        page.run()
        page["provider"].shutdown()
        page.run()
        (span,) = page["found"].collect()
    finally:
        page["receiver"].stop()
    page.finish()

    assert (span.service_name, span.name, span.status) == ("shop", "GET /orders", 200)
    assert span.milliseconds > 0


def test_the_page_on_channels(pems: Pems) -> None:
    printed: list[Any] = []
    port = str(lasting_port())
    places = {"0.0.0.0": "127.0.0.1", "chat.example": "127.0.0.1", "7400": port}
    places.update({"server.pem": pems.server, "server.key": pems.server_key, "ca.pem": pems.ca})
    page = Reader("docs/aqueduct.md", places, print=printed.append)

    def end_server() -> None:
        asyncio.run_coroutine_threadsafe(page["server"].close(), page["server"]._closed._loop).result(SECONDS)

    serving = page.begin()
    until(lambda: "server" in page.names, serving)
    page.run()
    end_server()
    serving.result(SECONDS)
    assert printed == [b"hello Ann"]
    serving = page.begin()
    until(lambda: "store" in page.names and page["server"].connections == 0, serving)
    page.run()
    end_server()
    serving.result(SECONDS)
    assert printed[1:] == [b"stored 13 bytes"]
    with channels_served(pems, int(port)):
        page.run()
    page.finish()


@contextmanager
def channels_served(pems: Pems, port: int) -> Iterator[None]:
    """A server that reads what clients send, in a thread."""

    async def read(connection: aqueduct.Connection) -> None:
        async for _ in connection.requests:
            pass

    async def serve() -> None:
        files: dict[str, Any] = {"certificate": pems.server, "key": pems.server_key}
        async with aqueduct.serve(read, "127.0.0.1", port, **files):
            listening.set()
            await asyncio.to_thread(ended.wait)

    listening, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert listening.wait(SECONDS)
    try:
        yield
    finally:
        ended.set()
        thread.join(SECONDS)


async def test_the_page_on_clients() -> None:
    printed: list[tuple[Any, ...]] = []
    gateway = FakeGateway()
    gateway.memory.streams = {"shop/orders": [[]], "shop/paid": [[]]}
    await gateway.start()
    places = {"gateway-1:7200,gateway-2:7200": gateway.address}
    page = Reader("docs/pipelines/clients.md", places, print=lambda *shown: printed.append(shown))

    for _ in range(6):
        await asyncio.to_thread(page.run)
    work = SimpleNamespace(root_event=SimpleNamespace(value={"order": 17, "price": 30}))
    assert page["charge"](work).data == {"order": 17, "paid": 30}
    await asyncio.to_thread(page.run)
    await asyncio.to_thread(eventually, lambda: "shop/price" in gateway.servers, seconds=SECONDS)
    await asyncio.to_thread(page.run)
    page.finish()

    assert printed[0] == ("shop.order.created", {"order": 17, "price": 30})
    assert {event.type for event in gateway.memory.streams["shop/paid"][0]} == {"shop.paid"}
    await gateway.stop()


def test_the_page_on_functions_in_spark() -> None:
    page = Reader("docs/pipelines/in-spark.md")
    page.run()
    page.finish()

    orders = [Event("shop.order.created", {"order": number}) for number in (17, 18)]
    assert [one.output for one in run_function(page["reserve"], orders)] == [{"shelf": 3}, {"shelf": 4}]


def test_the_page_for_authors_of_producers() -> None:
    with FakeWorker(cookie="dev") as worker, worker.committing():
        page = Reader("docs/start/producer.md", {'"127.0.0.1:7100"': repr(worker.address)})
        page.run()
        again = Reader("docs/start/producer.md", page.places)
        again.run()
        page.run()
        page.finish()

        assert worker.committed["message_id"].to_pylist() == list(range(1, 101))
        assert again["stream"].reference == 100


def test_the_page_for_tests_of_queries(spark: SparkSession, tmp_path: Path) -> None:
    page = Reader("docs/start/tests.md", spark=spark, tmp_path=tmp_path)
    page.run()
    page.run()
    page.finish()


def test_the_page_on_publishing_in_bulk() -> None:
    with FakeWorker(cookie="secret") as worker, worker.committing():
        places = {'registry="redis://…"': f'workers="{worker.address}"', "env:COOKIE": "secret"}
        page = Reader("docs/pipelines/bulk.md", places)
        page.run()
        page.finish()

        assert worker.committed["value"].to_pylist() == [b'{"type": "shop.order.created", "data": {"order": 17}}']


def test_the_page_on_sinks(spark: SparkSession, tmp_path: Path) -> None:
    page = Reader("docs/sinks.md", {"/data/": f"{tmp_path}/"})
    page.run()
    query = page.names["query"]
    try:
        until(lambda: query.exception() or (tmp_path / "lake/numbers/_delta_log").exists())
        assert query.exception() is None
    finally:
        query.stop()

    assert DeltaTable(tmp_path / "lake/numbers").to_pyarrow_table().column("value").to_pylist()


@pytest.mark.usefixtures("spark")
def test_the_page_on_publish_subscribe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOKIE", "secret")
    printed: list[tuple[Any, ...]] = []
    with EmbeddedRedis() as store, FakeWorker() as other:
        places = {"redis://redis:6379": store.url, "host:7100": other.address, "/data/": f"{tmp_path}/"}
        page = Reader("docs/pubsub.md", places, print=lambda *shown: printed.append(shown))
        publishing = page.begin()
        until(lambda: "query" in page.names, publishing)
        by_epoch = page.begin()
        until(lambda: any(len(shown) == 2 for shown in printed), by_epoch)
        by_item = page.begin()
        until(lambda: any(len(shown) == 3 for shown in printed), by_item)
        bridge = page.begin()
        until(lambda: other.status()["connected"] == ["bridge"], bridge)
        other.commit(seconds=SECONDS)
        page["query"].stop()
        # One instance name is one program: the page's connector ends, as this one takes its place.
        with BlockingConnector("other", instance="bridge", workers=other.address) as successor:
            successor.open("something else")
            with pytest.raises(RemoteProtocolError, match="takes its place"):
                bridge.result(SECONDS)
        for running in (publishing, by_epoch, by_item):
            running.result(SECONDS)
        page.finish()


def test_the_page_on_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COOKIE", "secret")
    printed: list[tuple[Any, ...]] = []
    with FakeWorker(cookie="secret") as worker, worker.committing():
        page = Reader("docs/producers.md", {"host:7100": worker.address}, print=lambda *shown: printed.append(shown))
        page.run()
        assert printed == [(100, "orders/shop-1 has nothing to wait for: everything that was sent is acknowledged")]
        assert page["failed"] == []
        page.run()
        assert page["seen"][-1].reference == 3
        assert sum(one.messages for one in page["seen"]) == 3
        page.finish()
        assert worker.committed.num_rows == 103


def test_the_page_on_producers_lists_all_codes() -> None:
    text = (ROOT / "docs" / "producers.md").read_text(encoding="utf-8")

    assert [code for code, meaning in CONNECTOR_CODES.items() if f"| `{code}` | {meaning} |\n" not in text] == []


def test_the_page_on_testing(spark: SparkSession, tmp_path: Path) -> None:
    page = Reader("docs/testing.md", {"/tmp/test-application": str(tmp_path / "application")}, spark=spark)
    for _ in range(6):
        page.run()
    page.finish()

    assert page["pytest_plugins"] == ["wallaroo_spark.testing.plugin"]
    with LocalReceiver(spark, tmp_path / "receiver") as receiver:
        page["test_a_line_is_a_row"](receiver)
