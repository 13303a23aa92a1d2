"""Transactional sinks behind a real query: one vote, one death, one restart, and each row once."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.sinks.server.serving import ServingSink
from tests.waiting import SECONDS
from wallaroo_spark import sinks
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.sinks import BatchWriter, Prepared, Transaction, transactional
from wallaroo_spark.sinks.connector_sink import ConnectorSink
from wallaroo_spark.steps import SinkStep, at_each


class Stage:
    """Two sink servers, a folder whose files are a batch each, and a query from it to them."""

    def __init__(self, spark: SparkSession, folder: Path, servers: list[ServingSink]) -> None:
        self.spark = spark
        self.servers = servers
        self.addresses = ",".join(server.address for server in servers)
        self.checkpoint = str(folder / "checkpoint")
        self._source = folder / "source"
        self._source.mkdir()
        self.sent: Counter[str] = Counter()

    def add(self, count: int = 50) -> None:
        """One more batch."""
        number = len(list(self._source.iterdir()))
        rows = [f"batch {number} row {index}" for index in range(count)]
        self.sent.update(rows)
        (self._source / f"{number}.txt").write_text("\n".join(rows))

    def run(self, writer: Callable[[Any, int], None]) -> None:
        """Deliver all that was added, a file a batch, and end."""
        rows = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._source)).repartition(4)
        write = rows.writeStream.foreachBatch(writer).option("checkpointLocation", self.checkpoint)
        query = write.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(int(SECONDS)), "the query does not end"
        finally:
            query.stop()

    def seen(self) -> Counter[str]:
        """The rows that readers of both servers see."""
        contents = [content for server in self.servers for content in server.shown().values()]
        return Counter(line for content in contents for line in content.decode().splitlines())


@pytest.fixture
def stage(spark: SparkSession, tmp_path: Path) -> Iterator[Stage]:
    with ServingSink(tmp_path / "one") as one, ServingSink(tmp_path / "two") as two:
        yield Stage(spark, tmp_path, [one, two])


class Mortal(ConnectorSink):
    """Its first task that has prepared partition 2 is killed before it can say so."""

    def __init__(self, address: str, order: str) -> None:
        super().__init__(address, name="orders", checkpoint="")
        self.order = order

    def prepare(self, transaction: Transaction, rows: Iterator[pa.RecordBatch]) -> Prepared:
        prepared = super().prepare(transaction, rows)
        if transaction.partition == 2 and os.path.exists(self.order):
            os.remove(self.order)
            os.kill(os.getpid(), signal.SIGKILL)
        return prepared


def test_a_batch_is_delivered_to_all_sinks_or_to_none_and_once(stage: Stage) -> None:
    writer = sinks.connector(stage.addresses, checkpoint=stage.checkpoint, name="orders")
    stage.add()
    stage.add()
    stage.run(writer)
    assert stage.seen() == stage.sent
    assert [len(server.shown()) for server in stage.servers] == [2, 2]
    log = Path(stage.checkpoint, "_wallaroo", "sinks", "orders")
    assert (log / "query").read_text() == json.loads(Path(stage.checkpoint, "metadata").read_text())["id"]

    # The second server cannot append to the output of partition 3, and votes abort.
    output = stage.servers[1].to / "orders-3.out"
    whole = output.read_bytes()
    output.write_bytes(whole[:-1])
    before = stage.seen()
    stage.add()
    with pytest.raises(StreamingQueryException, match="batch 2 is aborted, because of partition 3"):
        stage.run(writer)
    assert stage.seen() == before

    output.write_bytes(whole)
    stage.run(writer)
    assert stage.seen() == stage.sent


def test_a_killed_task_and_a_query_that_ends_behind_the_decision_lose_and_repeat_nothing(
    stage: Stage, tmp_path: Path
) -> None:
    # The processes of the tasks do not know the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    order = tmp_path / "order"
    sink = Mortal(stage.addresses, str(order))
    stage.add()
    order.touch()
    with pytest.raises(StreamingQueryException):
        stage.run(transactional(sink, checkpoint=stage.checkpoint))
    assert not order.exists()
    assert stage.seen() == Counter()

    def die(step: object) -> None:
        if step is SinkStep.DECIDED:
            raise KeyError("as if the driver had died here")

    stop = at_each(die)
    try:
        with pytest.raises(StreamingQueryException, match="as if the driver had died here"):
            stage.run(transactional(sink, checkpoint=stage.checkpoint))
    finally:
        stop()
    assert stage.seen() == Counter()

    stage.add()
    stage.run(transactional(sink, checkpoint=stage.checkpoint))
    assert stage.seen() == stage.sent
    assert sink.recover() == []


def test_whole_rows_go_out_as_json(stage: Stage, spark: SparkSession) -> None:
    writer = sinks.connector(
        stage.addresses, checkpoint=stage.checkpoint, name="orders", encode="json", delimiter=b"\r\n"
    )
    assert isinstance(writer, BatchWriter)
    writer(spark.sql("SELECT id, id * 2 AS twice, 'ä' AS text FROM range(3)").coalesce(1), 0)

    [content] = stage.servers[0].shown().values()
    assert content.endswith(b"\r\n")
    rows = [json.loads(line) for line in content.splitlines()]
    assert rows == [{"id": number, "twice": 2 * number, "text": "ä"} for number in range(3)]


def test_a_writer_with_the_checkpoint_of_another_query_delivers_nothing_and_names_both(stage: Stage) -> None:
    stage.add()
    own, other = stage.checkpoint, f"{stage.checkpoint}-of-another"
    stage.checkpoint = other
    stage.run(lambda frame, batch: None)
    found = CheckpointFiles(other).query_id()
    stage.checkpoint = own
    for checkpoint, said in ((other, f"is of the query {found}"), (f"{own}-of-none", "is no query's checkpoint")):
        writer = sinks.connector(stage.addresses, checkpoint=checkpoint, name="orders")
        with pytest.raises(StreamingQueryException, match=said) as refused:
            stage.run(writer)
        assert str(CheckpointFiles(own).query_id()) in str(refused.value)
    assert not stage.seen()
