"""The page on PostgreSQL and MQTT into Delta, from its blocks: each row once, also when the receiver is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from proving.servers.mosquitto import MosquittoServer
from proving.servers.postgres import PostgresServer
from tests.bridges.support import PROGRAM
from tests.bridges.test_mqtt import publish
from tests.conftest import ROOT
from tests.pages.reading import blocks_of
from tests.waiting import eventually
from wallaroo_spark.cli.receive.config import load
from wallaroo_spark.registry.embedded import lasting_port

PAGE = ROOT / "docs/postgres-and-mqtt-into-delta.md"
SECONDS = 120
"""A limit for Spark's start and a batch."""


def block(language: str) -> str:
    [found] = [one.text for one in blocks_of(PAGE) if one.language == language]
    return found


@contextmanager
def program(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the page in a process group of its own, which is killed in the end."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows(table: Path) -> list[tuple[str, str | None, str]]:
    try:
        found = DeltaTable(table).to_pyarrow_table().select(["source", "key", "value"]).to_pylist()
    except TableNotFoundError:
        return []
    return sorted((row["source"], row["key"], row["value"]) for row in found)


def kinds(table: Path) -> set[str]:
    return {source for source, _, _ in rows(table)}


def test_the_receiver_of_the_page_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cookie").write_text("secret\n")
    (tmp_path / "plant.yaml").write_text(block("yaml"))

    assert load(str(tmp_path / "plant.yaml")).sink.options == {"partition_by": "source"}


@pytest.mark.long
def test_rows_and_messages_are_there_once_though_the_receiver_is_killed(
    postgres: PostgresServer, mosquitto: MosquittoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSN", postgres.dsn)
    (tmp_path / "cookie").write_text("secret\n")
    port = lasting_port((0, 1))
    (tmp_path / "plant.yaml").write_text(block("yaml").replace("7100", str(port)).replace("5 seconds", "1 second"))
    with psycopg.connect(postgres.dsn, autocommit=True) as database:
        database.execute("CREATE ROLE reader")
        for statement in block("sql").split(";"):
            database.execute(statement.encode())
    receive = [sys.executable, "-m", "wallaroo_spark.cli.main", "receive", "plant.yaml", "--plain"]
    to = ["--workers", f"127.0.0.1:{port},127.0.0.1:{port + 1}", "--cookie", "file:cookie"]
    table = tmp_path / "lake/plant"

    with ExitStack() as stack:
        stack.enter_context(program(tmp_path, *PROGRAM, "postgres-table", "env:DSN", "orders", "--key", "id", *to))
        stack.enter_context(program(tmp_path, *PROGRAM, "mqtt", mosquitto.address, "plant/#", *to))
        with program(tmp_path, *receive):
            eventually(lambda: kinds(table) >= {"postgres-table"}, str(tmp_path / "log"), seconds=SECONDS)
            # The bridge has subscribed once a message arrives.
            first = '{"celsius": 0}'
            eventually(lambda: publish(mosquitto, "plant/first", first) or "mqtt" in kinds(table), seconds=SECONDS)
            with psycopg.connect(postgres.dsn, autocommit=True) as database:
                for number in range(200):
                    database.execute("INSERT INTO orders (item, price) VALUES (%s, %s)", (f"item {number}", number))
            publish(mosquitto, "plant/press-1/heat", *(f'{{"celsius": {number}}}' for number in range(100)))
        # Killed with all its processes, in the middle of its batches.
        with program(tmp_path, *receive):
            eventually(lambda: len(set(rows(table))) == 303, str(tmp_path / "log"), seconds=SECONDS)

    orders = [row for row in rows(table) if row[0] == "postgres-table"]
    assert len(orders) == 202
    assert len(set(orders)) == 202
    assert ("postgres-table", None, '{"id":1,"item":"lamp","price":19.90}') in orders
    assert ("mqtt", "plant/press-1/heat", '{"celsius": 71}') in rows(table)
