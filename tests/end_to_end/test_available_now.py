"""``Trigger.AvailableNow``: a run reads all messages that connectors send until they are quiet, and then ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from tests.receiver.support import Batches, Feeders, addresses, numbered, payload, payloads, rows_of
from tests.waiting import SECONDS
from wallaroo_spark.receiver import Receiver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("no_query_left")

QUIET = "1s"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


def run(spark: SparkSession, receiver: Receiver, sink: Any, checkpoint: str, **options: Any) -> Any:
    """Start one AvailableNow run."""
    rows = rows_of(spark, receiver, **{"quietSeconds": QUIET, **options})
    return receiver.start_query(rows.writeStream.trigger(availableNow=True).foreachBatch(sink), checkpoint=checkpoint)


@pytest.mark.both
def test_a_run_takes_all_that_is_sent_acknowledges_its_last_batch_and_the_next_run_goes_on(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, checkpoint: str
) -> None:
    batches = Batches()
    # However slowly the connectors come and send, the run waits for the ends of their streams.
    waits = {"instances": "now-a, now-b", "quietSeconds": "100s", "availableNowTimeout": "200s"}
    for last in (100, 130):
        query = run(spark, receiver, batches, checkpoint, maxOffsetsPerTrigger=40, **waits)
        connectors = [feeders.connect(f"now-{name}", addresses(receiver)) for name in "ab"]
        feeds = [
            feeders.feed(connector, numbered(name, 1, last)) for connector, name in zip(connectors, "ab", strict=True)
        ]
        # The run is over, and yet its last batch is acknowledged.
        assert query.awaitTermination(int(SECONDS))
        assert [feed.result(SECONDS).acknowledged for feed in feeds] == [last, last]
        assert query.exception() is None
        assert all(len(rows) <= 40 for rows in batches.rows.values())
        for connector in connectors:
            connector.close()

    assert [batches.values(name) for name in "ab"] == [payloads(name, 1, 130) for name in "ab"]


def test_a_run_without_connectors_ends(spark: SparkSession, receiver: Receiver, checkpoint: str) -> None:
    batches = Batches()

    assert run(spark, receiver, batches, checkpoint).awaitTermination(int(SECONDS))

    assert batches.all == []


def test_a_run_waits_for_the_instances_it_names_and_ends_once_they_have_ended_their_streams(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, checkpoint: str
) -> None:
    batches = Batches()
    options = {"instances": "late-1, late-2", "quietSeconds": "100s", "availableNowTimeout": "200s"}
    query = run(spark, receiver, batches, checkpoint, **options)
    for name in ("late-1", "late-2"):
        assert not query.awaitTermination(2)
        feeders.feed(feeders.connect(name, addresses(receiver)), numbered(name, 1, 10)).result(SECONDS)

    # Nobody has been quiet for a hundred seconds, but all streams have ended.
    assert query.awaitTermination(int(SECONDS))
    assert {name: batches.values(name) for name in options["instances"].split(", ")} == {
        name: payloads(name, 1, 10) for name in ("late-1", "late-2")
    }


def test_a_run_gives_up_waiting_when_its_time_is_over(spark: SparkSession, receiver: Receiver, checkpoint: str) -> None:
    query = run(spark, receiver, Batches(), checkpoint, instances="nobody", availableNowTimeout="2s")

    assert query.awaitTermination(int(SECONDS))
    assert query.exception() is None


def test_a_connector_that_waits_for_its_acknowledgement_does_not_count_as_quiet(
    spark: SparkSession, receiver: Receiver, feeders: Feeders, checkpoint: str
) -> None:
    batches = Batches()

    def slow(frame: DataFrame, number: int) -> None:
        batches(frame, number)
        # Longer than quietSeconds; nothing announces that a connector has been silent for so long.
        time.sleep(5.5)

    # The run waits for the connector; a slow machine may take long from an acknowledgement to the next message.
    waits = {"instances": "patient", "quietSeconds": "5s", "availableNowTimeout": "200s"}
    query = run(spark, receiver, slow, checkpoint, **waits)
    connector = feeders.connect("patient", addresses(receiver))
    stream = connector.open("steps")
    for number in (1, 2):
        stream.send(payload("steps", number), id=number)
        connector.drain(SECONDS)
    stream.end()

    assert query.awaitTermination(int(SECONDS))
    assert batches.values("steps") == payloads("steps", 1, 2)


def test_a_run_that_waits_can_be_stopped(spark: SparkSession, receiver: Receiver, checkpoint: str) -> None:
    query = run(spark, receiver, Batches(), checkpoint, instances="nobody", availableNowTimeout="300s")
    assert not query.awaitTermination(2)

    began = time.monotonic()
    query.stop()

    assert time.monotonic() - began < 60
    assert not query.isActive
