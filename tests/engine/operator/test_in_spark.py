"""The operator in a real Spark: events as files in, outputs of batches out, and the state after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.pipelines.controller.one_key import BEGINNING, record, reply
from tests.waiting import SECONDS
from wallaroo_spark.engine.operator.processor import run_keys
from wallaroo_spark.pipelines.controller.messages import events as e
from wallaroo_spark.pipelines.controller.messages import instructions as i
from wallaroo_spark.pipelines.controller.messages.plans import PartitionPlan, PipelinePlan, StagePlan
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.controller.stored.encoding import decode, encode
from wallaroo_spark.streams.rows import INPUT, OutputKind, Rank

EVENTS = "stream string, partition int, rank int, origin string, sequence bigint, place int, event binary"
KEYS = [PartitionKey("shop/orders", partition) for partition in (0, 1, 2)]
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


@pytest.fixture
def with_rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with the state store of the engine."""
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name, former in before.items():
        if former is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, former)


class Query:
    """A query over files of events; each call of :meth:`batch` starts it anew, so its state comes from the disk."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        (folder / "events").mkdir()

    def batch(self, events: Sequence[tuple[PartitionKey, e.Event]]) -> list[Row]:
        """Run one batch with these events. Returns its rows of OUTPUT."""
        self.files += 1
        rows = [
            (key.stream, key.partition, Rank.RECEIVED.value, "g0/1", self.files, place, encode(event))
            for place, (key, event) in enumerate(events)
        ]
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), INPUT, strict=True)]
        name = f"{self.files}.parquet"
        pq.write_table(pa.Table.from_arrays(columns, schema=INPUT), self.folder / name)
        (self.folder / name).rename(self.folder / "events" / name)
        found: list[Row] = []

        def keep(frame: DataFrame, _: int) -> None:
            found.extend(frame.collect())

        source = self.spark.readStream.schema(EVENTS).parquet(str(self.folder / "events"))
        query = (
            run_keys(source, str(self.folder))
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(SECONDS))
        return found


def bodies(rows: Sequence[Row], kind: OutputKind, partition: int) -> list[dict[str, Any]]:
    """The rows in the bodies of a kind of output of a partition."""
    found: list[dict[str, Any]] = []
    for row in rows:
        if row["kind"] == kind and row["partition"] == partition:
            table = pa.ipc.open_stream(bytes(row["body"])).read_all()
            assert table.num_rows == row["rows"]
            found += table.to_pylist()
    return found


def published(number: int, request: int) -> e.RecordsPublished:
    return e.RecordsPublished(reply(request, gateway="g0"), (record(number),))


def test_outputs_of_keys_and_their_state_after_a_restart(with_rocksdb: SparkSession, tmp_path: Path) -> None:
    query = Query(with_rocksdb, tmp_path)
    plan = PartitionPlan((PipelinePlan("shop/pack", (StagePlan("pack", given_root=True),), start=BEGINNING),))

    first = query.batch([(key, e.PartitionDeclared(1, plan)) for key in KEYS])
    second = query.batch([(key, published(number, number)) for number, key in enumerate(KEYS * 2, 1)])
    third = query.batch(
        [
            (KEYS[0], e.StageJoined(reply(7, gateway="g0"), "g0.1.1", "shop/pack", "pack", 10)),
            (KEYS[1], e.GroupJoined(reply(8, gateway="driver"), "g1.1.1", "audit", True, BEGINNING, 10)),
            (KEYS[1], published(9, 9)),
        ]
    )

    timers = [(row["partition"], row["kind"], row["first"]) for row in first]
    assert sorted(timers) == [(partition, "timer", None) for partition in (0, 1, 2)]
    records = sorted((row["partition"], row["first"], row["last"]) for row in second if row["kind"] == "records")
    assert records == [(partition, 1, 2) for partition in (0, 1, 2)]
    assert [(one["offset"], one["id"]) for one in bodies(second, OutputKind.RECORDS, 1)] == [(1, "2"), (2, "5")]
    assert [one["instance"] for one in bodies(second, OutputKind.HISTORY, 2)] == [1, 2]
    answers = [decode(one["instruction"]) for one in bodies(second, OutputKind.OUTBOX, 0)]
    assert [(one.reply_to.request, one.written[0].offsets) for one in answers] == [(1, (1,)), (4, (2,))]
    # The later batches know the records and instances of the earlier ones.
    given = [decode(one["instruction"]) for one in bodies(third, OutputKind.OUTBOX, 0)]
    assert [one.root and one.root.id for one in given if isinstance(one, i.DeliverInputs)] == ["1", "4"]
    assert [row["target"] for row in third if row["kind"] == "outbox" and row["partition"] == 1] == ["g0", "g1"]
    assert [row["first"] for row in third if row["kind"] == "records"] == [3]
