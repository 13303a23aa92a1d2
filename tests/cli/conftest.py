"""Common parts of the tests of the command line: the program as a process, and real workers without Spark."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import SECONDS, eventually
from wallaroo_spark.errors import TransportError
from wallaroo_spark.inner.calls import PlanQuestion
from wallaroo_spark.inner.client import WorkerClient, status_token
from wallaroo_spark.options import Options
from wallaroo_spark.references import Reference, flatten
from wallaroo_spark.registry import EmbeddedRedis, Registry
from wallaroo_spark.testing.fake_worker import DriverByHand
from wallaroo_spark.worker.run import WorkerThread
from wallaroo_spark.worker.service import WorkerSetup

PROGRAM = [sys.executable, "-m", "wallaroo_spark.cli.main"]
COOKIE = "sesame-of-the-tests"
TOKEN = "token-of-the-tests"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The command line sets up logging for its whole process; the tests of other rooms are not to notice."""
    logger = logging.getLogger("wallaroo_spark")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``wallaroo-spark`` with arguments, as a process in an empty directory; the caller judges the exit status."""

    def start(*arguments: str, stdin: str = "", timeout: float = SECONDS, **variables: str) -> Any:
        return subprocess.run(
            [*PROGRAM, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            cwd=tmp_path,
            env=os.environ | {"COLUMNS": "100"} | variables,
        )

    return start


@dataclass
class Desk:
    """One real worker behind a real registry, and a driver that commits whatever has arrived, as a query would."""

    url: str
    receiver: str
    registry: Registry
    client: WorkerClient
    driver: DriverByHand
    address: str
    references: dict[str, dict[str, Reference]] = field(default_factory=dict)
    open: threading.Event = field(default_factory=threading.Event)
    leaving: threading.Event = field(default_factory=threading.Event)

    def commit(self) -> None:
        """Commit until told to leave; only while :attr:`open` is set."""
        batch = 0
        while not self.leaving.wait(0.02):
            if not self.open.is_set():
                continue
            try:
                ends = self.client.plan(PlanQuestion(flatten(self.references))).ends
                if ends:
                    self.driver.committed(1, batch, ends)
            except TransportError:
                return
            for scope, streams in ends.items():
                self.references.setdefault(scope, {}).update(streams)
            batch += bool(ends)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture
def desk(redis_url: str, request: pytest.FixtureRequest) -> Iterator[Desk]:
    """A desk whose worker is ready; it commits from the start unless a test closes it."""
    name = f"desk-{request.node.name[:40].split('[')[0]}-{time.monotonic_ns()}"
    options = Options(receiver=name, registry=redis_url, cookie=COOKIE, host="127.0.0.1", workers=1)
    with Registry(redis_url, name) as registry:
        submission = registry.next_submission()
        registry.publish_fleet({"status_token": status_token(TOKEN), "workers": "1"})
        registry.lock("receiver", "driver-of-the-tests", 60)
        with WorkerThread(WorkerSetup(options, 0, submission, TOKEN), registry):
            eventually(lambda: any(lease.flight for lease in registry.leases().values()))
            lease = registry.leases()[0]
            client = WorkerClient(lease.flight, TOKEN)
            driver = DriverByHand(WorkerClient(lease.flight, TOKEN))
            driver.rewind(1, -1, {})
            found = Desk(redis_url, name, registry, client, driver, lease.connect)
            found.open.set()
            thread = threading.Thread(target=found.commit)
            thread.start()
            yield found
            found.leaving.set()
            thread.join()
            driver.stop()
            client.close()
