"""Receivers whose checkpoint is where Spark's settings say, which is not this machine's disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.elsewhere import Elsewhere
from tests.receiver.support import COOKIE, Batches, Feeders, addresses, numbered, payloads
from tests.waiting import SECONDS
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.errors import CheckpointError, ConfigurationError
from wallaroo_spark.receiver import Receiver, query
from wallaroo_spark.sidecar import task_access
from wallaroo_spark.source.datasource import Secrets, register
from wallaroo_spark.storage.hadoop import Hadoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Elsewhere:
    return Elsewhere(spark, tmp_path)


def open_receiver(spark: SparkSession) -> Receiver:
    return Receiver(spark, "orders", workers=1, cookie=COOKIE, lease_seconds=2)


def test_a_plain_path_is_on_sparks_default_file_system_and_connectors_are_acknowledged(elsewhere: Elsewhere) -> None:
    batches = Batches()
    with Feeders() as feeders, open_receiver(elsewhere.spark) as receiver:
        feeder = feeders.connect("shop-1", addresses(receiver))
        for last in (20, 40):
            query = receiver.start(receiver.stream().writeStream.foreachBatch(batches), checkpoint="/data/checkpoint")
            assert feeders.feed(feeder, numbered("s", 1, last), end=False).result(SECONDS).acknowledged
            metadata = json.loads((elsewhere.folder / "data/checkpoint/metadata").read_text())
            assert metadata["id"] == str(query.id)
            assert receiver.status().query.checkpoint == f"{elsewhere.root}/data/checkpoint"
            query.stop()
    assert batches.values("s") == payloads("s", 1, 40)


def test_a_session_that_another_one_made_has_a_receiver_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches()
    register(spark, "earlier", Secrets("redis://127.0.0.1:1", "a token of before"))
    with Feeders() as feeders, open_receiver(spark.newSession()) as receiver:
        feeder = feeders.connect("shop-1", addresses(receiver))
        query = receiver.start(
            receiver.stream().writeStream.foreachBatch(batches), checkpoint=str(tmp_path / "checkpoint")
        )
        assert feeders.feed(feeder, numbered("s", 1, 20), end=False).result(SECONDS).acknowledged
        query.stop()
    assert batches.values("s") == payloads("s", 1, 20)


def test_a_disk_that_the_machines_of_a_cluster_do_not_share_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "checkpoint"
    with open_receiver(spark) as receiver:
        writer = receiver.stream().writeStream.queryName("refused").foreachBatch(Batches())
        with monkeypatch.context() as on:
            # As executors on other machines see it: the same path, another disk.
            on.setattr(task_access, "on_one_machine", lambda master: False)
            on.setattr(task_access, "for_tasks", lambda location, session: str(tmp_path / "another disk"))
            with pytest.raises(ConfigurationError, match="receiver 'orders' needs file:///") as caught:
                receiver.start(writer, checkpoint=str(checkpoint))
        assert caught.value.code == "checkpoint-not-on-executors"
        assert "give a location that all machines share" in caught.value.message
        assert "refused" not in [active.name for active in spark.streams.active]
        assert not (checkpoint / "metadata").exists()
        receiver.start(writer, checkpoint=str(checkpoint)).stop()


def test_a_query_that_writes_elsewhere_than_is_read_is_stopped_with_both_places(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "checkpoint"
    assert str(here).startswith("/tmp/")
    monkeypatch.setattr(Hadoop, "of", classmethod(lambda cls, spark: None))
    monkeypatch.setattr(query, "OWN_SECONDS", 0.2)
    with open_receiver(elsewhere.spark) as receiver:
        writer = receiver.stream().writeStream.format("noop")
        with pytest.raises(
            CheckpointError, match="has no query's metadata: no message would be acknowledged"
        ) as caught:
            receiver.start(writer, checkpoint=str(here))
        assert f"to {elsewhere.root}{here}, but the receiver reads file://{here.resolve()}, " in str(caught.value)
        assert not elsewhere.spark.streams.active

        here.mkdir(exist_ok=True)
        (here / "metadata").write_text('{"id":"another"}')
        with pytest.raises(CheckpointError, match="is of the query another: no message would be acknowledged"):
            receiver.start(writer, checkpoint=str(here))


def test_without_a_gateway_a_plain_path_is_local(spark: SparkSession, tmp_path: Path) -> None:
    files = CheckpointFiles(str(tmp_path / "checkpoint"), spark)
    assert files.identity == CheckpointFiles(str(tmp_path / "checkpoint")).identity
    assert files.stamp() == 0
