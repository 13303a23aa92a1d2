"""The limit of a batch, the start of a query, and the lag in its progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.receiver.support import Batches, Feeders, addresses, numbered, payload, payloads, rows_of
from tests.waiting import SECONDS, eventually
from wallaroo_spark.connector import stream_id_of
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("no_query_left")


def start(spark: SparkSession, receiver: Receiver, batches: Batches, tmp_path: Path, **options: Any) -> Any:
    writer = rows_of(spark, receiver, **options).writeStream.foreachBatch(batches)
    return receiver.start_query(writer, checkpoint=str(tmp_path / "checkpoint"))


def sizes(batches: Batches) -> list[int]:
    """Rows a batch, of those that have any."""
    return [len(batches.rows[number]) for number in sorted(batches.rows) if batches.rows[number]]


@pytest.mark.parametrize(
    ("option", "limit", "rows"),
    [("maxOffsetsPerTrigger", 12, 12), ("maxBytesPerTrigger", "4k", 3)],
    ids=["rows", "bytes"],
)
def test_a_batch_stays_within_its_limit_and_the_progress_tells_the_lag(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path, option: str, limit: object, rows: int
) -> None:
    batches = Batches()
    query = start(spark, receiver, batches, tmp_path, **{option: limit})
    connector = feeders.connect(f"many-{option}", addresses(receiver))
    streams = [connector.open(name) for name in "ab"]
    batches.hold(lambda number: True)
    for number in range(1, 16):
        for stream in streams:
            stream.send(bytes(1000) + bytes([number]), id=number)
    batches.go()
    connector.drain(SECONDS)

    assert sum(sizes(batches)) == 30
    assert max(sizes(batches)) <= rows
    for name in "ab":
        assert [value[-1] for value in batches.values(name)] == list(range(1, 16))
    eventually(lambda: _lags(query)[-1:] == [0])
    assert max(_lags(query)) >= rows


def _lags(query: Any) -> list[int]:
    """The rows behind each batch, as its progress reports them."""
    texts = [progress["sources"][0]["latestOffset"] for progress in query.recentProgress]
    reports = [json.loads(text) for text in texts if text]
    return [report["lag"]["rows"] for report in reports if report]


def test_few_messages_wait_for_more(spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path) -> None:
    batches = Batches()
    start(spark, receiver, batches, tmp_path, minOffsetsPerTrigger=20, maxTriggerDelay="10m")
    connector = feeders.connect("few", addresses(receiver))
    stream = connector.open("drops")
    for first in (1, 11):
        eventually(lambda: batches.rows)
        for number in range(first, first + 10):
            stream.send(payload("drops", number), id=number)
        if first == 1:
            eventually(lambda: any(slot.memory_used for slot in receiver.status().slots))
    connector.drain(SECONDS)

    assert sizes(batches) == [20]


def test_few_messages_do_not_wait_forever(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, tmp_path: Path
) -> None:
    batches = Batches()
    start(spark, receiver, batches, tmp_path, minOffsetsPerTrigger=20, maxTriggerDelay="1s")
    connector = feeders.connect("impatient", addresses(receiver))

    feeders.feed(connector, numbered("drops", 1, 5)).result(SECONDS)

    assert batches.values("drops") == payloads("drops", 1, 5)


def test_a_query_without_a_checkpoint_begins_where_it_is_told(
    spark: SparkSession, feeders: Feeders, tmp_path: Path
) -> None:
    batches = Batches()
    begin = {"shop-1": {str(stream_id_of("shop-1", "told")): 40}}
    with Receiver(spark, "invoices", workers=1, starting_offsets=begin) as receiver:
        receiver.start_query(
            receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint")
        )
        connector = feeders.connect("shop-1", addresses(receiver), cookie="")
        assert connector.open("untold").reference is None
        feeders.feed(connector, numbered("told", 1, 60)).result(SECONDS)

    assert batches.values("told") == payloads("told", 41, 60)
