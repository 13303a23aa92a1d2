"""The tables of an application as DataFrames, with a real Spark session."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from tests.streams.application import ApplicationFiles, some_batches
from tests.streams.samples import NOON, ORDERS, output, records, rows_of
from tests.waiting import SECONDS
from wallaroo_spark import follow_stream, read_history, read_instances, read_stream
from wallaroo_spark.errors import ArgumentValueError
from wallaroo_spark.pipelines.schema.applying import apply_files
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.streams.dataframes import TABLE_DDL
from wallaroo_spark.streams.mover import TableMover
from wallaroo_spark.streams.places import table_of
from wallaroo_spark.streams.rows import HISTORY_DDL, OutputKind, as_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def app(tmp_path: Path) -> ApplicationFiles:
    return ApplicationFiles(tmp_path / "application")


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.collect())


def step(kind: str, at: int, instance: int = 7, **fields: Any) -> dict[str, Any]:
    """A step of an instance, ``at`` milliseconds after noon."""
    moment = {name: (NOON + fields.pop(name)) * 1000 for name in ("began_at",) if name in fields}
    usual = {"pipeline": "shop/fulfil", "partition": 1, "instance": instance, "birth": 3, "kind": kind}
    return {**usual, "at": (NOON + at) * 1000, **moment, **fields}


def after_noon(milliseconds: int) -> datetime:
    """A time as Spark returns it to a program in UTC."""
    return datetime.fromtimestamp((NOON + milliseconds) / 1000)


def test_a_plain_reader_sees_committed_records_only_and_each_once(spark: SparkSession, app: ApplicationFiles) -> None:
    some_batches(app)
    mover = TableMover(app.location, spark)
    for moved in (0, 3):
        mover.move(moved)
        app.seal(records(11, 12))
        plain = spark.read.format("parquet").load(table_of(app.location, ORDERS))
        assert offsets(plain) == [(partition, offset) for partition, offset, _ in app.table()]
    frame = read_stream(spark, app.location, ORDERS)
    assert plain.schema == frame.schema
    assert_df_equality(plain.drop("extensions"), frame.drop("extensions"), ignore_row_order=True)
    assert len(offsets(frame)) == 12


def test_a_dataframe_reads_the_rest_when_retention_deletes_a_file_meanwhile(
    spark: SparkSession, app: ApplicationFiles
) -> None:
    mover = TableMover(app.location)
    for first in (1, 3):
        mover.move(app.commit(records(first, first + 1), rows_of(OutputKind.HISTORY, [step("began", 0, first)])))
    before, history = read_stream(spark, app.location, ORDERS), read_history(spark, app.location)
    plain = spark.read.parquet(table_of(app.location, ORDERS))
    mover.expire(ORDERS, 0, 3)
    min((app.folder / "history").iterdir()).unlink()

    assert offsets(before) == [(0, 3), (0, 4)]
    assert [row["instance"] for row in history.collect()] == [3]
    assert before.count() == 2
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        plain.collect()


def test_a_query_that_follows_a_stream_has_each_record_once(
    spark: SparkSession, app: ApplicationFiles, tmp_path: Path
) -> None:
    declared = tmp_path / "shop.yaml"
    declared.write_text("kind: Namespace\nname: shop\n---\nkind: Stream\nname: orders\nnamespace: shop\n")
    apply_files(SchemaStore(app.location), [str(declared)], 0)
    copy = str(tmp_path / "copy")

    def follow() -> None:
        writer = follow_stream(spark, app.location, ORDERS).writeStream.trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(copy)
        assert query.awaitTermination(int(SECONDS))

    follow()
    some_batches(app)
    mover = TableMover(app.location, spark)
    mover.move(0)
    follow()
    mover.move(3)
    follow()
    follow()

    expected = read_stream(spark, app.location, ORDERS)
    assert len(offsets(expected)) == 12
    found = spark.read.schema(TABLE_DDL).parquet(copy)
    assert_df_equality(found.drop("extensions"), expected.drop("extensions"), ignore_row_order=True)


def test_the_columns_of_a_record(spark: SparkSession, app: ApplicationFiles) -> None:
    app.commit(records(7, 7, partition=3))
    TableMover(app.location).move(0)
    (row,) = read_stream(spark, app.location, ORDERS).collect()
    assert row.asDict() == {
        "offset": 7,
        "written_at": after_noon(0),
        "id": "e7",
        "source": "/shop",
        "type": "paid",
        "subject": "order 7",
        "time": None,
        "datacontenttype": None,
        "dataschema": None,
        "extensions": {},
        "data": bytearray(b"body 7"),
        "partition": 3,
    }


def test_events_of_every_shape_are_read_in_every_time_zone_also_from_a_copy_of_the_folder(
    spark: SparkSession, app: ApplicationFiles
) -> None:
    texts = ("0001-01-01T00:00:00Z", "0001-01-02T00:00:00Z", "9999-12-31T23:59:59.5Z", "2026-01-01T00:00:00.123456789Z")
    events = [CloudEvent(f"t{n}", "/a", "t", attributes=(("time", text),)) for n, text in enumerate(texts)]
    events += [
        CloudEvent("none", "/a", "t"),
        CloudEvent("empty", "/a", "t", b""),
        CloudEvent("big", "/a", "t", b"x" * (4 << 20)),
    ]
    odd = (("offset", "1"), ("partition", "9"), ("a b", "c"), ("\u00fc", ""), ("time", "yesterday"))
    events.append(CloudEvent("odd", "/a", "t", attributes=odd))
    rows = as_rows(1, events, NOON)
    app.commit(output(OutputKind.RECORDS, first=1, last=len(events), rows=len(events), body=as_arrow_stream(rows)))
    app.commit(records(1, 2, partition=1))
    TableMover(app.location).move(1)
    copied = shutil.copytree(app.folder / "streams", app.folder.parent / "elsewhere" / "streams").parent

    zone = spark.conf.get("spark.sql.session.timeZone")
    for other in ("Pacific/Kiritimati", "America/Los_Angeles"):
        spark.conf.set("spark.sql.session.timeZone", str(other))
        try:
            found = read_stream(spark, str(copied), ORDERS).where("partition = 0").orderBy("offset").collect()
        finally:
            spark.conf.set("spark.sql.session.timeZone", str(zone))
        assert [row["id"] for row in found] == [event.id for event in events]
        assert [row["time"] is None for row in found] == [True, False, True, False, True, True, True, True]
        assert [row["data"] if row["data"] is None else len(row["data"]) for row in found[4:7]] == [None, 0, 4 << 20]
        assert found[7]["extensions"] == dict(odd)
    pruned = read_stream(spark, app.location, ORDERS).where("partition = 1").select("offset")
    assert [row["offset"] for row in pruned.orderBy("offset").collect()] == [1, 2]
    assert read_stream(spark, app.location, ORDERS).count() == len(events) + 2


def test_a_name_that_begins_with_an_underscore_is_read(spark: SparkSession, app: ApplicationFiles) -> None:
    app.commit(records(1, 2, stream="_a/_b"))
    TableMover(app.location).move(0)
    assert offsets(read_stream(spark, app.location, "_a/_b")) == [(0, 1), (0, 2)]


def test_a_declared_stream_without_records_is_empty_and_another_one_is_refused(
    spark: SparkSession, app: ApplicationFiles
) -> None:
    app.folder.mkdir()
    schema = app.folder / "schema.yaml"
    schema.write_text("kind: Namespace\nname: shop\n---\nkind: Stream\nname: orders\nnamespace: shop\n")
    apply_files(SchemaStore(app.location), [str(schema)], 1.0)

    assert_df_equality(read_stream(spark, app.location, ORDERS), spark.createDataFrame([], TABLE_DDL))
    for name, problem in (("shop/order", "it has shop/orders"), ("orders", "no namespace"), ("shop/a b", "' '")):
        with pytest.raises(ArgumentValueError, match=problem):
            read_stream(spark, app.location, name)


def test_an_application_without_instances_has_an_empty_history(spark: SparkSession, app: ApplicationFiles) -> None:
    assert_df_equality(read_history(spark, app.location), spark.createDataFrame([], HISTORY_DDL))
    assert read_instances(spark, app.location).collect() == []


def test_an_instance_is_a_row_with_its_stages_and_outputs(spark: SparkSession, app: ApplicationFiles) -> None:
    ship: dict[str, Any] = {"stage": "ship", "began_at": 300, "output": b"ok", "content_type": "text/plain"}
    written: dict[str, Any] = {"target_stream": "shop/shipments", "target_partition": 2, "offsets": [4, 5]}
    refused: dict[str, Any] = {
        "target_stream": "shop/gone",
        "target_partition": 0,
        "offsets": [],
        "reason": "no such stream",
    }
    rows = [
        [step("began", 100, version=3), step("began", 100, instance=8, version=3)],
        [step("output", 300, stage="charge", began_at=100), step("skipped", 300, instance=1, offsets=[1, 6])],
        [step("output", 1800, **ship), step("pointer", 1900, reason="", **written), step("pointer", 1900, **refused)],
        [step("ended", 2000, began_at=100, outcome="done", reason="")],
        [step("nacked", 2500, instance=8, stage="charge", attempts=2, reason="no stock")],
        # The pipeline was deleted and declared anew.
        [step("began", 3000, birth=9, version=9)],
    ]
    for of_batch in rows:
        TableMover(app.location).move(app.commit(rows_of(OutputKind.HISTORY, of_batch)))

    assert read_history(spark, app.location).count() == 10
    done, anew, active = read_instances(spark, app.location).orderBy("instance", "birth").collect()
    assert (anew["instance"], anew["birth"], anew["outcome"], anew["stages"]) == (7, 9, None, [])
    assert done.asDict(recursive=True) == {
        "pipeline": "shop/fulfil",
        "partition": 1,
        "instance": 7,
        "birth": 3,
        "version": 3,
        "outcome": "done",
        "reason": "",
        "began_at": after_noon(100),
        "ended_at": after_noon(2000),
        "stages": [
            {
                "stage": "charge",
                "began_at": after_noon(100),
                "ended_at": after_noon(300),
                "seconds": 0.2,
                "output": None,
                "content_type": None,
            },
            {
                "stage": "ship",
                "began_at": after_noon(300),
                "ended_at": after_noon(1800),
                "seconds": 1.5,
                "output": bytearray(b"ok"),
                "content_type": "text/plain",
            },
        ],
        "outputs": [
            {"stream": "shop/gone", "partition": 0, "offsets": [], "refused": "no such stream"},
            {"stream": "shop/shipments", "partition": 2, "offsets": [4, 5], "refused": None},
        ],
        "nacks": [],
    }
    (nack,) = active["nacks"]
    assert nack.asDict() == {"at": after_noon(2500), "stage": "charge", "attempts": 2, "reason": "no stock"}
    assert (active["outcome"], active["ended_at"], active["stages"], active["outputs"]) == (None, None, [], [])
    assert active["began_at"] == after_noon(100)
