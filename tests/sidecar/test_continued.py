"""A checkpoint, the files beside it, and a sink server's directory that older code wrote are continued."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.receiver.support import COOKIE, Feeders, addresses, numbered, payload
from tests.sinks.server.serving import ServingSink
from tests.waiting import SECONDS
from wallaroo_spark import sinks
from wallaroo_spark.pubsub import Position, Topic, publish, subscribe
from wallaroo_spark.receiver import Receiver
from wallaroo_spark.registry import EmbeddedRedis
from wallaroo_spark.sinks.decision_log import DecisionLog
from wallaroo_spark.sinks.interface import Prepared, Transaction
from wallaroo_spark.sinks.stores.staged_rows import StagedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITTEN = Path(__file__).with_name("data")
HISTORY = "c1cd0042400e4f6dbbbb6cf840b71452"
"""The identity of the topic ``rows`` there."""


def texts(first: int, last: int) -> list[str]:
    return [payload("a", number).decode() for number in range(first, last + 1)]


@pytest.mark.no_cover
@pytest.mark.long
def test_a_query_its_sinks_and_its_topic_continue_from_older_files(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(WRITTEN, tmp_path, dirs_exist_ok=True)
    checkpoint, out = str(tmp_path / "checkpoint"), tmp_path / "out"
    with EmbeddedRedis() as redis, ServingSink(tmp_path / "served") as server, Feeders() as feeders:
        files = sinks.files(str(out), checkpoint=checkpoint, name="files", format="json")
        lines = sinks.connector(server.address, checkpoint=checkpoint, name="lines")

        def each(frame: DataFrame, batch: int) -> None:
            rows = frame.selectExpr("CAST(value AS STRING) AS value").persist()
            publish(rows, "rows")
            files(rows, batch)
            lines(rows, batch)
            rows.unpersist()

        shared: dict[str, Any] = {"registry": redis.url, "cookie": COOKIE, "lease_seconds": 2}
        with (
            Receiver(spark, "orders", workers=1, **shared) as receiver,
            Topic(spark, "rows", checkpoint=checkpoint, **shared) as topic,
        ):
            query = receiver.start(receiver.stream().writeStream.foreachBatch(each), checkpoint=checkpoint)
            connector = feeders.connect("shop", addresses(receiver))
            fed = feeders.feed(connector, numbered("a", 1, 40))
            assert fed.result(SECONDS).acknowledged == 40
            query.stop()
            assert topic.status()["identity"] == HISTORY
            seen: list[str] = []
            first = Position(HISTORY, 1)
            with subscribe("rows", registry=redis.url, cookie=COOKIE, resume=first, lost_after=120) as subscription:
                for _, table in subscription.epochs():
                    seen += table["value"].to_pylist()
                    if len(seen) >= 40:
                        break
        written = sorted(path for path in out.glob("batch=*/part-*.json"))
        shown = server.shown()

    assert [json.loads(row)["value"] for path in written for row in path.read_text().splitlines()] == texts(1, 40)
    assert shown == {"lines-0": "".join(f"{text}\n" for text in texts(1, 40)).encode()}
    assert sorted(seen) == sorted(texts(1, 40))


def test_a_decision_log_of_an_older_version_is_recovered(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "checkpoint", tmp_path, dirs_exist_ok=True)
    log = DecisionLog(str(tmp_path), "lines")
    log.load()

    assert log.newest() == (3, "committed")
    ((batch, prepared),) = log.unfinished().items()
    assert (batch, [one.rows for one in prepared]) == (3, [10])
    assert prepared[0].detail["end"] == 141
    assert log.finished(0)
    assert log.memory() == {"ends": {"0": {"127.0.0.1:40115": 141}}, "whole": True}


def test_rows_that_were_staged_before_are_read(tmp_path: Path) -> None:
    shutil.copytree(WRITTEN / "checkpoint", tmp_path, dirs_exist_ok=True)
    stage = StagedRows(str(tmp_path), "entries")

    (transaction,) = stage.found()
    rows = stage.read([Prepared(transaction, 3)])
    assert transaction == Transaction("entries", 1, 0, "a")
    assert [value for piece in rows for value in piece["value"].to_pylist()] == [b"one", b"two", b"three"]
    assert stage.identity() == (WRITTEN / "checkpoint/_wallaroo/stages/entries/identity").read_text()
