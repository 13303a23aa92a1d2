"""Rows of a query are read by an application, without Spark: the sink's own files, and the engine's own batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.sweep.loop import Batches, Mortal
from tests.sinks.stores.stream_reader import SCHEMA, declare
from wallaroo_spark.pipelines.schema.applying import apply_files, delete_objects
from wallaroo_spark.pipelines.schema.names import ObjectKey
from wallaroo_spark.pipelines.schema.store import SchemaStore
from wallaroo_spark.sinks.interface import Transaction
from wallaroo_spark.sinks.stores import stream as module
from wallaroo_spark.sinks.stores.stream import StreamSink

Rows = dict[str, Any]


class Stage:
    """An application, and a sink that writes to it."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self.folder = folder
        self.application = declare(folder, partitions)
        self.partitions = partitions
        self._batches = 0

    def sink(self, **more: Any) -> StreamSink:
        given = {"checkpoint": str(self.folder / f"checkpoint-{more.get('name', '')}"), "type": "t", **more}
        return StreamSink(self.application, "shop/orders", **given)

    def prepare(self, rows: Rows, **more: Any) -> Callable[[], None]:
        """Prepare a batch; the result commits it."""
        sink, batch = self.sink(**more), self._batches
        self._batches += 1
        prepared = sink.prepare(Transaction.new(sink.name, batch, 0), iter([pa.record_batch(rows)]))
        return lambda: sink.commit(batch, [prepared])

    def write(self, rows: Rows, **more: Any) -> None:
        """Prepare and commit a batch."""
        self.prepare(rows, **more)()

    def apply(self, partitions: int) -> None:
        """Apply the schema with another number of partitions."""
        document = self.folder / "next.yaml"
        document.write_text(SCHEMA.format(partitions=partitions), encoding="utf-8")
        apply_files(SchemaStore(self.application), [str(document)], time.time())
        self.partitions = partitions

    def run(self) -> None:
        """Start the application, run until nothing is left to read, and end it."""
        batches = Batches(self.application, Mortal(0, alone=True))
        while batches.run():
            batches.follow()
        batches.follow()

    def records(self, stream: str = "shop/orders") -> dict[int, list[str]]:
        """The payloads of each partition, in their order."""
        found: dict[int, list[str]] = {}
        for folder in sorted((Path(self.application) / "streams" / stream).glob("partition=*")):
            rows = [row for file in folder.glob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
            rows.sort(key=lambda row: row["offset"])
            assert [row["offset"] for row in rows] == list(range(rows[0]["offset"], rows[0]["offset"] + len(rows)))
            found[int(folder.name.partition("=")[2])] = [row["data"].decode() for row in rows]
        return found


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, 2)


def keyed(begin: int, end: int, keys: int = 5) -> Rows:
    """Numbered rows of some keys."""
    numbers = range(begin, end)
    return {"value": [f"{number:04}" for number in numbers], "key": [f"k{number % keys}" for number in numbers]}


def assert_in_order_by_key(stage: Stage, end: int, keys: int = 5) -> None:
    """Each of the rows of :func:`keyed` is there once, and those of a key are in one partition, in order."""
    found = stage.records()
    assert sorted(text for texts in found.values() for text in texts) == [f"{number:04}" for number in range(end)]
    for key in range(keys):
        own = {number: [text for text in texts if int(text) % keys == key] for number, texts in found.items()}
        (texts,) = [texts for texts in own.values() if texts]
        assert texts == sorted(texts)


def test_each_row_is_a_record_once_and_in_order_also_when_the_application_was_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILE_EVENTS", 7)
    stage.write(keyed(0, 50))
    stage.run()
    stage.write(keyed(50, 60))
    commit = stage.prepare(keyed(60, 90))
    stage.run()
    commit()
    commit()
    stage.run()
    stage.run()

    assert_in_order_by_key(stage, 90)


def test_what_is_read_leaves_the_inbox(stage: Stage) -> None:
    for begin in range(0, 30, 10):
        stage.write(keyed(begin, begin + 10))
        stage.run()

    assert [*Path(stage.application, "_wallaroo", "inbox").rglob("*.arrow")] == []


@pytest.mark.parametrize("read_first", [True, False], ids=["is read before", "is not read before"])
def test_partitions_that_are_added_between_the_vote_and_the_read_lose_and_repeat_nothing(
    stage: Stage, *, read_first: bool
) -> None:
    stage.write(keyed(0, 40))
    if read_first:
        stage.run()
    commit = stage.prepare(keyed(40, 80))
    stage.apply(5)
    commit()
    stage.write(keyed(80, 100))
    stage.run()
    stage.write(keyed(100, 120))
    stage.run()

    found = stage.records()
    texts = [text for some in found.values() for text in some]
    assert sorted(texts) == [f"{number:04}" for number in range(120)]


def test_the_rows_of_a_stream_that_is_deleted_before_they_are_read_go_with_it(stage: Stage) -> None:
    stage.write(keyed(0, 10))
    delete_objects(SchemaStore(stage.application), [ObjectKey("Stream", "shop", "orders")], time.time())
    stage.run()
    stage.apply(2)
    stage.run()
    stage.write({"value": ["new"], "partition": [1]})
    stage.run()

    assert stage.records() == {1: ["new"]}


def test_two_queries_write_to_one_stream(stage: Stage) -> None:
    stage.write({"value": ["a", "b"], "partition": [0, 0]})
    stage.write({"value": ["c", "d"], "partition": [0, 0]}, name="other")
    stage.run()

    (found,) = stage.records().values()
    assert [one for one in found if one in "ab"] == ["a", "b"]
    assert [one for one in found if one in "cd"] == ["c", "d"]


def test_a_message_that_a_connector_has_sent_twice_is_one_event(stage: Stage) -> None:
    message = {"instance": ["till"], "stream": ["orders"], "message_id": [7], "value": ["a"], "partition": [0]}
    stage.write(message)
    stage.write(message, name="other")
    stage.run()

    assert stage.records() == {0: ["a"]}
