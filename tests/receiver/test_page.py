"""The status page of a running receiver: where it is, and that it ends with the receiver."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from proving.browser import Browser
from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered
from tests.waiting import SECONDS
from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.observe.server import driver_pages as page
from wallaroo_spark.observe.server.page_server import PageAddress
from wallaroo_spark.options import Options
from wallaroo_spark.receiver import Receiver, checks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fetch(address: str, path: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=SECONDS) as response:
        return json.load(response)


def listening() -> set[int]:
    """The TCP ports on which this process listens."""
    inodes = set()
    for descriptor in Path(f"/proc/{os.getpid()}/fd").iterdir():
        try:
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            continue
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and line[9] in inodes}


def test_each_receiver_has_a_page_that_ends_with_it(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wallaroo_spark.observe")
    before = listening()
    with (
        Receiver(spark, "orders", workers=1, lease_seconds=2) as orders,
        Receiver(spark, "bills", workers=1, lease_seconds=2, status_page="localhost:0") as bills,
    ):
        pages = [orders.page_address, bills.page_address]
        assert [fetch(address, "api/status")["status"]["name"] for address in pages] == ["orders", "bills"]
        assert [receiver.status().page for receiver in (orders, bills)] == pages
        assert all(f"the status page is {address}" in caplog.text for address in pages)
        ports = {urlsplit(address).port for address in pages}
        assert ports <= listening()
    assert (orders.page_address, bills.page_address) == ("", "")
    assert listening() <= before


def test_a_page_that_others_reach_is_refused_at_the_start_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="set statusPageToken to 16 characters or more"):
        checks.status_page(Options(status_page="0.0.0.0:4140"))
    monkeypatch.setenv("PAGE_TOKEN", "x" * 16)
    place = checks.status_page(Options(status_page="0.0.0.0:4140", status_page_token="env:PAGE_TOKEN"))
    assert place == PageAddress("0.0.0.0", 4140, "x" * 16)
    assert checks.status_page(Options(status_page="off")) is None


@pytest.mark.parametrize(
    ("logs", "said"), [("", "receiver orders: the status page is http://127.0.0.1:"), ("logging.basicConfig()", "")]
)
def test_a_program_without_logging_is_told_the_address_of_the_page(logs: str, said: str) -> None:
    program = f"""
import logging
from wallaroo_spark.options import Options
from wallaroo_spark.observe.server import driver_pages as page
from wallaroo_spark.observe.server.page_server import PageAddress
{logs}
page.start_receiver_page(PageAddress("127.0.0.1", 0, ""), Options(receiver="orders"), {{}}).stop()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)

    assert ended.stdout == ""
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == (1 if said else 0)


def test_a_default_port_that_cannot_be_used_leaves_the_receiver_running(caplog: pytest.LogCaptureFixture) -> None:
    nowhere = PageAddress("203.0.113.1", 0, "x" * 16)

    assert page.start_receiver_page(nowhere, Options(receiver="orders"), {}) is None
    assert "receiver orders has no status page: option statusPage: cannot listen on" in caplog.text
    with pytest.raises(ConfigurationError, match="option statusPage: cannot listen on"):
        page.start_receiver_page(nowhere, Options(receiver="orders", status_page="203.0.113.1:0"), {})


def test_a_report_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "report.html", tmp_path):
        with pytest.raises(ConfigurationError, match=r"option report: .* cannot be written; name a file in a folder"):
            page.check_report(str(path))
    page.check_report("")
    page.check_report(str(tmp_path / "report.html"))
    with pytest.raises(ConfigurationError, match="the receiver was never started"):
        Receiver(None, "orders").report(str(tmp_path / "report.html"))


def test_a_run_leaves_a_report_without_secrets(
    spark: SparkSession, tmp_path: Path, feeders: Feeders, browser: Browser
) -> None:
    file = tmp_path / "report.html"
    options = {"cookie": COOKIE, "token": "t0k3n" * 8, "report": str(file), "status_page": "off", "lease_seconds": 5}
    with Receiver(spark, "orders", workers=1, **options) as receiver:
        query = receiver.stream().writeStream.foreachBatch(Batches())
        receiver.start_query(query, checkpoint=str(tmp_path / "checkpoint"))
        connector = feeders.connect("shop-<b>1", addresses(receiver))
        assert feeders.feed(connector, numbered("clicks", 1, 500)).result(120).acknowledged
        assert receiver.page_address == ""
        assert not file.exists()

    html = file.read_text(encoding="utf-8")
    assert not [secret for secret in (COOKIE, "t0k3n", "redis://") if secret in html]
    with browser.open(file.as_uri(), width=360, height=740) as shown:
        assert shown.text("h1") == "orders"
        run = shown.text("dl")
        assert "500 rows" in run.partition("committed")[2]
        assert "1 connector" in run or "most connectors" in run
        assert "statusPage" in shown.text()
        assert shown.run("document.querySelectorAll('figure').length") >= 6
        assert shown.run("document.documentElement.scrollWidth") <= 360
        assert shown.errors() == []
    receiver.report(str(tmp_path / "again.html"))
    assert (tmp_path / "again.html").stat().st_size > 1_000
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "again.html", "checkpoint"}
