"""Connectors into a durable stream: one program runs the receiver, its query and the application, and all of them die.

``docs/pipelines/bulk.md`` has the same files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.engine.application.bulk_sender import PART
from tests.pages.reading import blocks_of
from tests.waiting import SECONDS, eventually
from wallaroo_spark.registry import EmbeddedRedis, Registry, application_registry

PAGE = ROOT / "docs" / "pipelines" / "bulk.md"
COUNT = 20_000
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COOKIE": "secret"}
pytestmark = [pytest.mark.spark, pytest.mark.timeout(20 * SECONDS)]


class Program:
    """``wallaroo-spark run --receive`` with the files of the page, which tests kill and start again."""

    def __init__(self, folder: Path, redis: str) -> None:
        self.folder, self.redis = folder, redis
        schema, receiver = (one.text for one in blocks_of(PAGE) if one.language == "yaml")
        (folder / "shop.yaml").write_text(schema, encoding="utf-8")
        (folder / "tills.yaml").write_text(receiver, encoding="utf-8")
        self._log: IO[bytes] = (folder / "driver.log").open("ab")
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the first time with the schema."""
        flags = ("--app", "shop", "--schema", "shop.yaml", "--receive", "tills.yaml", "--registry", self.redis)
        more = ("--state-partitions", "1", "--move-seconds", "0.5", "--status-page", "off")
        program = [sys.executable, "-m", "wallaroo_spark.cli.main", "run", *flags, *more]
        self._driver = subprocess.Popen(
            program, stdout=self._log, stderr=self._log, cwd=self.folder, env=ENVIRONMENT, start_new_session=True
        )

    def kill(self) -> None:
        """Kill it with its Java process and all of Spark's."""
        assert self._driver is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait(SECONDS)

    def kill_worker(self) -> None:
        """Kill the process of the receiver's worker."""
        self._kill_holder(Registry(self.redis, "tills"))

    def kill_gateway(self) -> None:
        """Kill the process of the gateway."""
        self._kill_holder(application_registry(self.redis, "shop"))

    def _kill_holder(self, registry: Registry) -> None:
        with registry:
            holder = eventually(lambda: next((one.holder for one in registry.leases().values() if one.connect), ""))
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(holder.split("/")[1]), signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        assert self._driver is not None
        self._driver.terminate()
        assert self._driver.wait(2 * SECONDS) == 0, self.log()

    def records(self) -> list[dict[str, Any]]:
        """The records in the stream's table, in the order of their offsets."""
        assert self._driver is not None
        assert self._driver.poll() is None, self.log()
        files = (self.folder / "shop" / "streams" / "shop" / "orders").glob("partition=*/*.parquet")
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted(rows, key=lambda row: int(row["offset"]))

    def log(self) -> str:
        """The last lines of the program."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")[-4000:]


@pytest.fixture
def program(tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Program]:
    running = Program(tmp_path, own_redis.url)
    running.start()
    yield running
    running.kill()


def test_the_example_of_the_page_makes_events_of_a_connectors_messages(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = (one.text for one in blocks_of(PAGE) if one.language == "python")
    monkeypatch.setenv("COOKIE", "secret")
    exec(code.replace("redis://…", program.redis), {})
    rows = eventually(program.records, seconds=4 * SECONDS, pause=0.5)

    assert [(row["id"], row["source"], row["type"], json.loads(row["data"])) for row in rows] == [
        ("orders/17", "till-7", "shop.order.created", {"order": 17})
    ]
    program.stop()


@pytest.mark.long
def test_messages_of_a_connector_are_events_once_and_in_order_while_everything_is_killed(program: Program) -> None:
    command = [sys.executable, "-m", "tests.engine.application.bulk_sender", program.redis, "tills", "bulk", str(COUNT)]
    kills = {PART: "worker", 3 * PART: "program", 5 * PART: "connector", 6 * PART: "gateway", 8 * PART: "program"}
    ended = False
    for _ in range(2):
        sender = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
        try:
            assert sender.stdout is not None
            for line in sender.stdout:
                match kills.pop(int(line), ""):
                    case "worker":
                        program.kill_worker()
                    case "gateway":
                        program.kill_gateway()
                    case "program":
                        program.kill()
                        program.start()
                    case "connector":
                        sender.kill()
            ended = sender.wait(SECONDS) == 0
        finally:
            sender.kill()
            sender.wait()
    assert ended, program.log()
    assert not kills

    eventually(lambda: len(program.records()) >= COUNT, seconds=4 * SECONDS, pause=1)
    assert [int(row["data"]) for row in program.records()] == list(range(COUNT))
    program.stop()
