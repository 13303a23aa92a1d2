"""An application of durable streams on a standalone cluster: its promises hold while its processes are killed.

All processes are real: master, executors, gateways, the driver that `wallaroo-spark run` is, and the stages' workers.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow.parquet as pq
import pytest

from proving.shop.judge import INPUTS, OUTPUTS, StreamRecord, Verdict, judge, rows_of
from tests.conftest import ROOT, StandaloneCluster
from tests.waiting import SECONDS, eventually
from wallaroo_spark.client import Client, Event
from wallaroo_spark.registry import EmbeddedRedis, application_registry
from wallaroo_spark.registry.embedded import lasting_port

SHOP = ROOT / "examples" / "shop"
STREAMS = sorted({*INPUTS.values(), *(name for names in OUTPUTS.values() for name in names)})
UNPAYABLE = 1000
GATEWAYS = 2
LEASE_SECONDS = 5
pytestmark = pytest.mark.timeout(20 * SECONDS)


class Shop:
    """The shop's application on the cluster, its workers, and the processes that a test kills."""

    def __init__(self, cluster: StandaloneCluster, folder: Path, redis: str) -> None:
        self.folder = folder / "shop"
        self.redis = redis
        self.port = lasting_port(range(GATEWAYS))
        self.addresses = ",".join(f"127.0.0.1:{self.port + number}" for number in range(GATEWAYS))
        self._cluster = cluster
        self._log: IO[bytes] = (folder / "driver.log").open("ab")
        self._workers_log: IO[bytes] = (folder / "workers.log").open("ab")
        self._driver: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the driver; the first time with the schema."""
        flags = {
            "app": str(self.folder),
            "schema": str(SHOP / "shop.yaml"),
            "master": self._cluster.url,
            "registry": self.redis,
            "gateways": str(GATEWAYS),
            "port": str(self.port),
            "state-partitions": "2",
            "lease-seconds": str(LEASE_SECONDS),
            "move-seconds": "0.5",
        }
        conf = (
            "spark.driver.host=127.0.0.1",
            "spark.ui.enabled=false",
            "spark.executor.memory=512m",
            # Executors do not inherit the tests' path.
            f"spark.executorEnv.PYTHONPATH={ROOT}",
        )
        arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
        arguments += [part for one in conf for part in ("--conf", one)]
        program = [sys.executable, "-m", "wallaroo_spark.cli.main", "run", *arguments]
        self._driver = subprocess.Popen(program, stdout=self._log, stderr=self._log, start_new_session=True)

    def work(self) -> None:
        """Start one more worker of all stages."""
        program, log = [sys.executable, str(SHOP / "workers.py"), self.addresses], self._workers_log
        self._workers.append(subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True))

    def kill_worker(self) -> None:
        """Kill the oldest worker, and start another one."""
        end(self._workers.pop(0))
        self.work()

    def kill_driver(self) -> None:
        """Kill the driver with its Java process, and start it again."""
        assert self._driver is not None
        end(self._driver)
        self.start()

    def kill_gateway(self) -> None:
        """Kill the process of a gateway."""
        with application_registry(self.redis, "shop") as registry:
            leases = eventually(lambda: {n: one for n, one in registry.leases().items() if one.connect}, pause=0.1)
        holder = random.choice(list(leases.values())).holder
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(holder.split("/")[1]), signal.SIGKILL)

    def kill_executor(self) -> None:
        """Kill the Java process of an executor of this cluster."""
        victim = random.choice(eventually(self._executors, pause=0.1))
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()

    def _executors(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline", "cwd"]):
            words = process.info["cmdline"] or []
            if "CoarseGrainedExecutorBackend" in " ".join(words) and str(process.info["cwd"]).startswith(
                str(self._cluster.state)
            ):
                found.append(process)
        return found

    def publish(self, orders: int) -> None:
        """Publish orders from 1 on; every sixth cannot be paid."""
        with Client(self.addresses, source="/shop/web", timeout=4 * SECONDS) as client:
            for number in range(1, orders + 1):
                price = number if number % 6 else UNPAYABLE
                event = Event("shop.order.created", {"order": number, "price": price}, id=str(number))
                client.publish("shop/orders", event)

    def history(self) -> list[dict[str, Any]]:
        """The history in the tables."""
        return [row for file in (self.folder / "history").glob("*.parquet") for row in pq.read_table(file).to_pylist()]

    def records(self, stream: str) -> list[StreamRecord]:
        """The records in the table of a stream."""
        return [
            StreamRecord(int(file.parent.name.partition("=")[2]), row["offset"], row["data"])
            for file in (self.folder / "streams" / stream).glob("partition=*/*.parquet")
            for row in pq.ParquetFile(file).read().to_pylist()
        ]

    def progress(self) -> list[dict[str, Any]]:
        """The history in the tables, while the driver runs."""
        assert self._driver is not None
        assert self._driver.poll() is None, self.log()
        return self.history()

    def ended(self, orders: int) -> bool:
        """Whether all instances have ended."""
        rows = [row["pipeline"] for row in self.progress() if row["kind"] == "ended"]
        return rows.count("shop/fulfil") >= orders and rows.count("shop/compensate") >= orders // 6

    def verdict(self, orders: int) -> Verdict:
        """Wait until all instances have ended, stop the driver in good order, and judge."""
        eventually(lambda: self.ended(orders), seconds=6 * SECONDS, pause=0.5)
        assert self._driver is not None
        self._driver.terminate()
        assert self._driver.wait(2 * SECONDS) == 0, self.log()
        published = range(1, orders + 1)
        streams = {name: self.records(name) for name in STREAMS}
        return judge(published, rows_of(self.history()), streams, [one for one in published if one % 6 == 0])

    def log(self) -> str:
        """The last lines of the driver."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")[-3000:]

    def close(self) -> None:
        """End all processes."""
        for process in (*self._workers, self._driver):
            if process is not None:
                end(process)
        self._log.close()
        self._workers_log.close()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(SECONDS)


@pytest.fixture
def shop(standalone_cluster: StandaloneCluster, tmp_path: Path, own_redis: EmbeddedRedis) -> Iterator[Shop]:
    running = Shop(standalone_cluster, tmp_path, own_redis.url)
    yield running
    running.close()


def run(shop: Shop, orders: int, kills: list[Callable[[], None]]) -> Verdict:
    """Publish orders and kill processes meanwhile, each once some more instances have ended."""
    shop.start()
    shop.work()
    publishing = threading.Thread(target=shop.publish, args=(orders,), daemon=True)
    publishing.start()
    eventually(shop.progress, seconds=3 * SECONDS, pause=0.2)
    for kill in kills:
        before = len(shop.progress())
        kill()
        eventually(lambda: len(shop.progress()) > before or not publishing.is_alive(), seconds=3 * SECONDS, pause=0.2)  # noqa: B023  # it is called in this round
    publishing.join(4 * SECONDS)
    return shop.verdict(orders)


@pytest.mark.long
def test_the_shop_keeps_its_promises_while_an_executor_is_killed(shop: Shop) -> None:
    verdict = run(shop, 4, [shop.kill_executor])

    assert verdict.broken == []
    assert verdict.counts["instances of shop/fulfil"] == 4


@pytest.mark.long
def test_the_shop_keeps_its_promises_while_a_gateway_an_executor_and_the_driver_are_killed(shop: Shop) -> None:
    verdict = run(shop, 12, [shop.kill_gateway, shop.kill_executor, shop.kill_driver])

    assert verdict.broken == []
    assert verdict.counts["instances of shop/fulfil"] == 12


@pytest.mark.long
def test_the_shop_keeps_its_promises_while_everything_is_killed_at_random(shop: Shop) -> None:
    orders = 400
    kinds = [shop.kill_worker, shop.kill_gateway, shop.kill_executor, shop.kill_driver]
    chosen = random.Random(14)
    verdict = run(shop, orders, [*kinds, *(chosen.choice(kinds) for _ in range(8))])

    assert verdict.broken == []
    assert verdict.counts["instances of shop/fulfil"] == orders
    assert 0 < verdict.most_active["shop/fulfil"] <= 20
