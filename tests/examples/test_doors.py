"""A webhook and a Kafka producer feed the shop: one program runs the doors, the stream and the pipeline."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.waiting import SECONDS, eventually
from wallaroo_spark.json_text import load_json
from wallaroo_spark.registry import EmbeddedRedis, application_registry
from wallaroo_spark.registry.embedded import lasting_port

SHOP = ROOT / "examples" / "shop"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COOKIE": "secret"}
pytestmark = [pytest.mark.long, pytest.mark.timeout(8 * SECONDS)]


@contextlib.contextmanager
def program(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs in a folder, with its Java process, and is killed at the end."""
    with (folder / "programs.log").open("ab") as log:
        running = subprocess.Popen(
            [sys.executable, *command], stdout=log, stderr=log, cwd=folder, env=ENVIRONMENT, start_new_session=True
        )
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(SECONDS)


def test_orders_of_a_webhook_and_of_a_kafka_producer_are_shipped(tmp_path: Path, own_redis: EmbeddedRedis) -> None:
    http, kafka = lasting_port(), lasting_port(range(4))
    text = (SHOP / "doors.yaml").read_text(encoding="utf-8")
    (tmp_path / "doors.yaml").write_text(text.replace("8080", str(http)).replace("9092", str(kafka)), encoding="utf-8")
    flags = ("--app", "shop", "--schema", str(SHOP / "shop.yaml"), "--receive", "doors.yaml")
    more = ("--registry", own_redis.url, "--state-partitions", "1", "--move-seconds", "0.5", "--status-page", "off")
    with program(tmp_path, "-m", "wallaroo_spark.cli.main", "run", *flags, *more) as running:

        def gateway() -> str:
            assert running.poll() is None, (tmp_path / "programs.log").read_text(encoding="utf-8")
            with application_registry(own_redis.url, "shop") as registry:
                return next((one.connect for one in registry.leases().values() if one.connect), "")

        def open_doors() -> bool:
            with contextlib.suppress(OSError):
                for port in (http, kafka):
                    socket.create_connection(("127.0.0.1", port)).close()
                return True
            return False

        address = eventually(gateway, "a gateway serves", seconds=4 * SECONDS, pause=0.5)
        eventually(open_doors, "the doors are open", seconds=4 * SECONDS, pause=0.5)
        with (
            program(tmp_path, str(SHOP / "workers.py"), address),
            program(tmp_path, str(SHOP / "order.py"), f"127.0.0.1:{http}", f"127.0.0.1:{kafka}") as sender,
        ):
            assert sender.wait(2 * SECONDS) == 0, (tmp_path / "programs.log").read_text(encoding="utf-8")

            def shipped() -> list[int]:
                files = (tmp_path / "shop" / "streams" / "shop" / "shipments").glob("partition=*/*.parquet")
                rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
                return sorted(load_json(row["data"])["order"] for row in rows)

            eventually(lambda: shipped() == [1, 2], "both orders are shipped", seconds=4 * SECONDS, pause=0.5)
