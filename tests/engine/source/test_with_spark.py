"""The source in a real query: nothing lost or repeated over restarts, and no batch while nothing is new."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.waiting import SECONDS
from wallaroo_spark.checkpoint import CheckpointFiles
from wallaroo_spark.engine.source import InputOffset, offset_of, register
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.declarations import StreamDeclaration
from wallaroo_spark.pipelines.schema.store import SchemaStore, StoredSchema
from wallaroo_spark.sidecar.task_access import as_arrow_stream
from wallaroo_spark.streams.batch_outputs import BatchOutputs, Manifest, OutputFile
from wallaroo_spark.streams.inbox import InboxPosition, InboxReader, InboxWriter
from wallaroo_spark.streams.places import checkpoint_of
from wallaroo_spark.streams.rows import INPUT, OutputKind, Rank

KEY = PartitionKey("shop/orders", 1)
Row = tuple[str, int, int, str, int, int, bytes | None]


class Recorder:
    """A query over the source of one folder that records the rows of each batch and seals its manifest."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder = str(folder)
        self.rows: dict[int, list[Row]] = {}
        self.timers: dict[str, int] = {}
        self.fails_at: int | None = None
        self.failed_at = -1
        self.carries_at: int | None = None
        self._spark = spark
        self._outputs = BatchOutputs(self.folder)
        self._changed = threading.Condition()
        self._query: Any = None

    def start(self) -> None:
        source = register(self._spark, self.folder).option("maxRows", 50).load()
        writer = source.writeStream.foreachBatch(self._take).option("checkpointLocation", checkpoint_of(self.folder))
        self._query = writer.start()

    def stop(self) -> None:
        self._query.stop()

    def awaits(self, reached: Callable[[], bool]) -> None:
        """Wait until a batch has made this true."""
        with self._changed:
            assert self._changed.wait_for(lambda: reached() or not self._query.isActive, SECONDS), self.rows
        assert reached(), self._query.exception()

    def events(self) -> list[bytes]:
        """The events of gateways and the carried ones, in the order of the batches."""
        return [row[6] for batch in sorted(self.rows) for row in self.rows[batch] if row[6] and row[2] != Rank.DECLARED]

    def of(self, rank: Rank) -> list[Row]:
        return [row for batch in sorted(self.rows) for row in self.rows[batch] if row[2] == rank]

    def _take(self, frame: Any, batch: int) -> None:
        rows = sorted(tuple(row) for row in frame.collect())
        rows = [(*row[:6], None if row[6] is None else bytes(row[6])) for row in rows]
        if batch in self.rows:
            assert rows == self.rows[batch]
        files = (self._carry(batch),) if batch == self.carries_at else ()
        self._outputs.seal(Manifest(batch, files, dict(self.timers)))
        self.timers = {}
        with self._changed:
            self.rows[batch] = rows
            self._changed.notify_all()
        if batch == self.fails_at:
            self.fails_at, self.failed_at = None, batch
            raise RuntimeError("the batch fails on purpose, after its manifest")

    def _carry(self, batch: int) -> OutputFile:
        import pyarrow as pa

        row = {"stream": "shop/orders", "partition": 0, "rank": 1, "origin": "shop/orders/1", "sequence": 1, "place": 0}
        rows = pa.RecordBatch.from_pylist([{**row, "event": b"carried"}], INPUT)
        with self._outputs.new_file(batch, "0.arrow") as stream:
            stream.write(as_arrow_stream(rows))
        return OutputFile(batch, OutputKind.CARRIED, name="0.arrow", rows=1)


@pytest.fixture
def recorder(spark: SparkSession, tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(spark, tmp_path)
    made.start()
    yield made
    made.stop()


def test_rows_are_read_once_over_restarts_and_generations(recorder: Recorder, spark: SparkSession) -> None:
    stream = StreamDeclaration(name="orders", namespace="shop", partitions=2)
    SchemaStore(recorder.folder).write(StoredSchema(1, {stream.key: stream}))
    old = InboxWriter(recorder.folder, "g0")
    assert old.open() == 1
    old.write([(KEY, b"a"), (KEY, b"b")])
    recorder.awaits(lambda: recorder.events() == [b"a", b"b"])
    assert [(row[0], row[1]) for row in recorder.of(Rank.DECLARED)] == [("shop/orders", 0), ("shop/orders", 1)]

    # A batch whose commit is not written runs again after the restart, though the gateway has written more meanwhile
    # and the files of the batches before it are deleted.
    recorder.fails_at = max(recorder.rows) + 1
    old.write([(KEY, b"c")])
    recorder.awaits(lambda: recorder.events()[-1] == b"c")
    with pytest.raises(Exception, match="on purpose"):
        recorder._query.awaitTermination(SECONDS)
    old.write([(KEY, b"d")])
    files, reader = CheckpointFiles(checkpoint_of(recorder.folder)), InboxReader(recorder.folder)
    committed = files.committed()
    assert committed == recorder.failed_at - 1
    read = offset_of(files, committed).inbox
    assert (reader.delete_read(read), reader.delete_read(read)) == (1, 0)
    new = InboxWriter(recorder.folder, "g0")
    assert new.open() == 2
    new.write([(KEY, b"e")])
    recorder.start()
    recorder.awaits(lambda: recorder.events() == [b"a", b"b", b"c", b"d", b"e"])

    # Carried messages and due timers come in later batches, and then the source is idle.
    recorder.carries_at = max(recorder.rows) + 1
    recorder.timers = {"shop/orders/1": 1}
    new.write([(KEY, b"f")])
    recorder.awaits(lambda: bool(recorder.events()[-1] == b"carried" and recorder.of(Rank.DUE)))
    assert recorder.events() == [b"a", b"b", b"c", b"d", b"e", b"f", b"carried"]
    assert [(row[0], row[1], row[6]) for row in recorder.of(Rank.DUE)] == [("shop/orders", 1, None)]
    recorder._query.processAllAvailable()
    last = max(recorder.rows)
    recorder._query.processAllAvailable()
    assert max(recorder.rows) == last
    assert all(recorder.rows[batch] for batch in recorder.rows if batch)
    committed = files.committed()
    assert committed is not None
    offset = InputOffset.from_json(files.source_offsets(committed)[0])
    assert (offset.inbox, offset.schema) == ({"g0": InboxPosition(2, 2)}, 1)
    reader.delete_read(offset_of(files, committed).inbox)
    assert reader.unread({}) == {"g0": {2: ()}}
