"""OTLP clients into a real query: tables of all signals, and a worker that is killed."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from tests.doors.http.test_receiver import kill_worker
from tests.doors.otlp.requests import logs, method_of, metrics, traces
from tests.waiting import SECONDS, eventually
from wallaroo_spark import otel
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSE = 0.1
"""Seconds between two attempts of a client."""
SPANS = 20


def send(receiver: Receiver, signal: str, body: bytes) -> bool:
    """Send a body to wherever the door is; returns whether it was answered with success."""
    for door in receiver.status().doors:
        with suppress(grpc.RpcError), grpc.insecure_channel(door.address) as channel:
            method_of(channel, signal)(body, timeout=SECONDS)
            return True
    return False


@pytest.mark.timeout(280)
def test_what_was_answered_is_in_the_tables_when_a_worker_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    sent = {"logs": logs("late"), "metrics": metrics(), "traces": traces("GET /", "POST /")}
    answered: list[str] = []
    stopped = threading.Event()
    with Receiver(spark, "telemetry", workers=1, otlp_port=0, include_corrupt=True, lease_seconds=2) as receiver:
        writer = receiver.start().stream().writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = receiver.start_query(writer, checkpoint=str(tmp_path / "checkpoint"))
        eventually(lambda: send(receiver, "traces", b""), "the door answers")

        def run() -> None:
            for number in range(SPANS):
                body = traces(f"span {number}", service="other").SerializeToString()
                while not send(receiver, "traces", body):
                    if stopped.wait(PAUSE):
                        return
                answered.append(f"span {number}")

        sending = threading.Thread(target=run)
        sending.start()
        try:
            for signal, request in sent.items():
                assert send(receiver, signal, request.SerializeToString())
            # Its lengths are right, and it is no request; the query goes on.
            assert send(receiver, "traces", b"\x0a\x02\xff\xff")
            eventually(lambda: len(answered) >= SPANS // 4, "some are answered")
            kill_worker(receiver)
            sending.join(SECONDS)
        finally:
            stopped.set()
        assert not sending.is_alive()
        assert query.isActive

    stored = spark.read.parquet(str(tmp_path / "table"))
    instances = {row.instance for row in stored.select("instance").distinct().collect()}
    assert instances == {"otlp/shop", "otlp/other", "otlp/unnamed"}
    otel.spans(stored).createOrReplaceTempView("sent_spans")
    spans = spark.sql(
        "SELECT service_name, name, error_bytes IS NOT NULL AS unread, "
        "variant_get(resource.attributes, '$[\"service.name\"]', 'string') AS service, "
        "(end_time_unix_nano - start_time_unix_nano) / 1e6 AS ms FROM sent_spans"
    ).collect()
    spark.catalog.dropTempView("sent_spans")
    assert [row.name for row in spans if row.unread] == [None]
    assert {(row.name, row.service, row.ms) for row in spans if row.service_name == "shop"} == {
        ("GET /", "shop", 5.0), ("POST /", "shop", 5.0)
    }  # fmt: skip
    others = [row.name for row in spans if row.service_name == "other"]
    assert len(answered) == SPANS
    # A span whose worker died before the answer may be there twice.
    assert set(others) == set(answered)
    assert len(others) <= SPANS + 1
    (record,) = otel.logs(stored).selectExpr("cast(body as string) AS body", "to_json(attributes) AS a").collect()
    assert (record.body, record.a) == ("late", "{}")
    points = otel.metrics(stored).selectExpr(
        "metric_type", "gauge.value", "to_json(sum.exemplars[0].filtered_attributes) AS e"
    )
    assert {(row.metric_type, row.value, row.e) for row in points.collect()} == {
        ("gauge", 7.0, None), ("sum", None, "{}"), ("histogram", None, None),
        ("exponential_histogram", None, None), ("summary", None, None)
    }  # fmt: skip
