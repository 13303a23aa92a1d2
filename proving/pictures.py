"""Takes the pictures of ``top``, of the status page and of a run report: ``python -m proving.pictures``.

A real receiver with two workers and four connectors: at first its sink is quick, then one batch takes more than a
minute, so that rows fall behind; then a worker is killed. The pictures are taken from the verb ``top`` itself and from
the page in a headless Chromium, and are written into ``docs/``.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from click.testing import CliRunner
from rich.console import Console

from proving.browser import Browser
from wallaroo_spark.cli import status_views
from wallaroo_spark.cli.main import cli
from wallaroo_spark.cli.sessions import THIS_MACHINE
from wallaroo_spark.connector import BlockingConnector
from wallaroo_spark.errors import WallarooError
from wallaroo_spark.observe.receiver import ReceiverStatus
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DOCS = Path(__file__).resolve().parents[1] / "docs"
COOKIE = "a cookie for the pictures"
COLUMNS = 200
"""Columns of the terminal in which ``top`` is shown."""
WAIT_SECONDS = 180.0
"""The longest wait for a state of the receiver."""
QUICK_SECONDS = 1.0
"""The duration of a quick batch in the sink."""
SHOPS = {"shop-1": 40, "shop-2": 120, "shop-3": 400}
"""Each instance that sends steadily, and its messages a second."""


@dataclass
class Stage:
    """The receiver of the pictures, and the gate of its sink."""

    receiver: Receiver
    registry: str
    """URL of its registry."""
    gate: threading.Event
    """While it is not set, the sink waits."""

    def sink(self, rows: DataFrame, _: int) -> None:
        """A sink that takes a second, and waits while the gate is closed."""
        rows.count()
        time.sleep(QUICK_SECONDS)
        self.gate.wait(WAIT_SECONDS)

    def until(self, condition: Callable[[ReceiverStatus], bool]) -> None:
        """Wait until a status of the receiver fulfils a condition. Raises TimeoutError."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(found := self.receiver.status()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"still not so after {WAIT_SECONDS:g} s: {found.cause}, {found.totals}")
            time.sleep(0.5)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """A receiver whose query runs, with its connectors."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[4,4]").appName("pictures")
    for name, value in THIS_MACHINE.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    options: dict[str, Any] = {"workers": 2, "cookie": COOKIE, "status_page": "127.0.0.1:0", "lease_seconds": 5}
    with EmbeddedRedis() as redis, Receiver(spark, "orders", registry=redis.url, **options) as receiver:
        stage = Stage(receiver, redis.url, threading.Event())
        stage.gate.set()
        query = receiver.start_query(
            receiver.stream().writeStream.foreachBatch(stage.sink), checkpoint=str(folder / "checkpoint")
        )
        over = threading.Event()
        senders = [threading.Thread(target=send, args=(redis.url, name, rate, over)) for name, rate in SHOPS.items()]
        senders.append(threading.Thread(target=send, args=(redis.url, "shop-quiet", 0, over)))
        for sender in senders:
            sender.start()
        try:
            yield stage
        finally:
            over.set()
            stage.gate.set()
            for sender in senders:
                sender.join(WAIT_SECONDS)
            query.stop()
    spark.stop()


def send(registry: str, instance: str, rate: int, over: threading.Event) -> None:
    """Send that many messages a second until the event; with a rate of 0 one message alone."""
    connector = BlockingConnector("orders", instance=instance, registry=registry, cookie=COOKIE, drain_timeout=1.0)
    with contextlib.suppress(WallarooError), connector:
        stream = connector.open(f"{instance}-2026.jsonl" if rate else "returns.jsonl")
        last = 1
        stream.send(b'{"order": 1}', id=last)
        while not over.wait(0.5):
            ids = range(last + 1, last + 1 + rate // 2)
            stream.send_many([b'{"order": %d}' % number for number in ids], ids=ids)
            last += len(ids)


def take_top(stage: Stage, browser: Browser, folder: Path) -> None:
    """The picture of ``top``, from the output of the verb."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False
    )
    given = ["top", "--once", "--every", "3", "--registry", stage.registry, "--receiver", "orders"]
    with mock.patch.object(status_views, "console", return_value=console):
        result = CliRunner().invoke(cli, given)
    if result.exit_code not in (0, 1) or (result.exception and not isinstance(result.exception, SystemExit)):
        raise RuntimeError(f"top has failed: {result.output}") from result.exception
    page = folder / "top.html"
    drawing = console.export_svg(title="wallaroo-spark top")
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><style>body{{margin:0}}svg{{display:block}}</style>{drawing}'
    )
    with browser.open(page.as_uri(), width=1640, height=400) as opened:
        height = opened.run("Math.ceil(document.querySelector('svg').getBoundingClientRect().height)")
        opened.screen(width=1640, height=height)
        opened.picture(DOCS / "top.png", whole=False)


def take_page(stage: Stage, browser: Browser) -> None:
    """The pictures of the status page: its upper part in the dark, and on a phone."""
    shown = "document.querySelectorAll('#streams tbody tr').length > 0"
    for name, screen in (
        ("status-page.png", {"width": 1024, "height": 1064, "dark": True}),
        ("status-page-phone.png", {"width": 360, "height": 1108, "dark": False}),
    ):
        with browser.open(stage.receiver.page_address, **screen) as page:
            page.wait(shown)
            page.picture(DOCS / "images" / name, whole=False)


def take_report(stage: Stage, browser: Browser, folder: Path) -> None:
    """The picture of the report, after a worker was killed."""
    victim = stage.receiver.status().slots[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    stage.until(lambda found: found.totals.died == 1 and found.totals.serving == 2)
    committed = stage.receiver.status().query.committed_batch or 0
    stage.until(lambda found: (found.query.committed_batch or 0) > committed + 5)
    stage.receiver.report(str(folder / "report.html"))
    with browser.open((folder / "report.html").as_uri(), width=832, height=1521) as page:
        page.picture(DOCS / "images" / "run-report.png", whole=False)


def main() -> None:
    """Take all pictures."""
    with tempfile.TemporaryDirectory(prefix="orders-") as name, contextlib.closing(Browser(Path(name))) as browser:
        folder = Path(name)
        with staged(folder) as stage:
            stage.until(lambda found: (found.query.committed_batch or 0) >= 15 and found.totals.sessions == 4)
            stage.gate.clear()
            stage.until(lambda found: found.cause.code == "sink-slow" and not found.cause.healthy)
            take_top(stage, browser, folder)
            take_page(stage, browser)
            stage.gate.set()
            take_report(stage, browser, folder)
    print(f"wrote the pictures into {DOCS}")


if __name__ == "__main__":
    main()
