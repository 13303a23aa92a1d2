"""The alert rules in a real Prometheus, against a query whose sink really stalls, with the rules' own times."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from proving.servers.prometheus import PrometheusServer
from tests.observe.test_alerts import RULES
from tests.receiver.support import COOKIE, Feeders, addresses
from tests.waiting import eventually
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STALL_SECONDS = 1500.0
"""The longest stall: the slowest of the rules needs some five minutes of it."""
EXPECTED = {"WallarooAckTooOld", "WallarooBatchTooLong"}
ALSO = {"WallarooNothingCommitted"}
"""Fires as well once the stall has lasted for five minutes more."""


def firing(server: PrometheusServer) -> set[str]:
    """The names of the alerts that fire now."""
    return {alert["metric"]["alertname"] for alert in server.query('ALERTS{alertstate="firing"}')}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(2400)  # the rules wait for two and for five minutes
def test_a_query_that_stalls_fires_its_alerts_and_these_end_with_the_stall(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    stalled, gate = threading.Event(), threading.Event()

    def sink(rows: DataFrame, batch: int) -> None:
        if rows.count():
            stalled.set()
            assert gate.wait(STALL_SECONDS)

    options: dict[str, Any] = {"workers": 1, "cookie": COOKIE, "lease_seconds": 5, "status_page": "127.0.0.1:0"}
    with Receiver(spark, "orders", **options) as receiver:
        receiver.start_query(receiver.stream().writeStream.foreachBatch(sink), checkpoint=str(tmp_path / "checkpoint"))
        stream = feeders.connect("shop-1", addresses(receiver)).open("orders.jsonl")
        server = PrometheusServer([urlsplit(receiver.page_address).netloc], RULES)
        server.start()
        try:
            eventually(lambda: server.query("wallaroo_query_up == 1"), seconds=120)
            assert firing(server) == set()
            stream.send(b"x", id=1)
            assert stalled.wait(120)

            eventually(
                lambda: firing(server) >= EXPECTED, "the alerts of a stall fire", seconds=STALL_SECONDS / 2, pause=1.0
            )
            assert firing(server) <= EXPECTED | ALSO
            texts = [alert["annotations"]["summary"] for alert in server.ask("alerts")["data"]["alerts"]]
            assert all(text.startswith("orders: ") for text in texts)

            gate.set()
            eventually(lambda: firing(server) == set(), "the alerts end with the stall", seconds=300, pause=1.0)
            assert stream.acknowledged == 1
        finally:
            gate.set()
            server.remove()
