"""The status page of a running receiver: where it is, and that it ends with the receiver."""

from __future__ import annotations

import json
import logging
import os
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from wallaroo_spark.errors import ConfigurationError
from wallaroo_spark.options import Options
from wallaroo_spark.receiver import Receiver, checks, page
from wallaroo_spark.web import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fetch(address: str, path: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address + path, headers=headers), timeout=60) as response:
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
    caplog.set_level(logging.INFO, "wallaroo_spark.web")
    before = listening()
    with (
        Receiver(spark, "orders", workers=1, lease_seconds=2) as orders,
        Receiver(spark, "bills", workers=1, lease_seconds=2, status_page="localhost:0") as bills,
    ):
        pages = [orders.page_address, bills.page_address]
        assert [fetch(address, "api/status")["receiver"] for address in pages] == ["orders", "bills"]
        assert [receiver.status()["page"] for receiver in (orders, bills)] == pages
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
    assert place == Place("0.0.0.0", 4140, "x" * 16)
    assert checks.status_page(Options(status_page="off")) is None


def test_a_default_port_that_cannot_be_used_leaves_the_receiver_running(caplog: pytest.LogCaptureFixture) -> None:
    nowhere = Place("203.0.113.1", 0, "x" * 16)

    assert page.start_page(nowhere, Options(receiver="orders"), dict) is None
    assert "receiver orders has no status page: option statusPage: cannot listen on" in caplog.text
    with pytest.raises(ConfigurationError, match="option statusPage: cannot listen on"):
        page.start_page(nowhere, Options(receiver="orders", status_page="203.0.113.1:0"), dict)
