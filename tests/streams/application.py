"""The files of an application, written batch by batch as its query writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.streams.samples import outputs, records
from wallaroo_spark.pipelines.controller.messages.values import PartitionKey
from wallaroo_spark.pipelines.schema.cloud_event import CloudEvent
from wallaroo_spark.storage.locations import Location
from wallaroo_spark.streams.batch_outputs import BatchOutputs, manifest_of, write_outputs
from wallaroo_spark.streams.rows import as_events
from wallaroo_spark.streams.stream_table import TableReader


class ApplicationFiles:
    """Batches of the application at a local path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = str(folder)
        self.next = 0
        """The next batch."""

    def seal(self, *rows: dict[str, Any]) -> int:
        """Write a batch with these outputs, which is not committed; its number."""
        before = BatchOutputs(self.location).manifest(self.next - 1) if self.next else None
        sealed(self.location, self.next, *rows, before=before)
        return self.next

    def commit(self, *rows: dict[str, Any]) -> int:
        """Write a batch with these outputs and commit it; its number."""
        batch = self.seal(*rows)
        commits = self.folder / "checkpoint" / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self.next += 1
        return batch

    def table(self, stream: str = "shop/orders") -> list[tuple[int, int, str]]:
        """The partition, offset and id of each record in the files of a table, as a plain reader sees them."""
        return sorted(row for path in self.files(stream) for row in _rows(path))

    def files(self, stream: str = "shop/orders") -> list[Path]:
        """The files of a table that a plain reader sees."""
        found = (self.folder / "streams" / stream).glob("partition=*/*")
        return sorted(path for path in found if path.is_file() and path.name[0] not in "._")


class StreamTable:
    """The records of one stream, as a reader of the application's tables has them."""

    def __init__(self, location: Location, stream: str = "shop/orders") -> None:
        self._reader, self._stream = TableReader(location), stream

    def read(
        self, partition: int, first: int, last: int | None = None, *, most_bytes: int | None = None
    ) -> tuple[int, tuple[CloudEvent, ...]]:
        """See :meth:`TableReader.read`."""
        return self._reader.read(PartitionKey(self._stream, partition), first, last, most_bytes=most_bytes)

    def oldest(self, partition: int) -> int | None:
        """See :meth:`TableReader.oldest`."""
        return self._reader.oldest(PartitionKey(self._stream, partition))


def sealed(location: Location, batch: int, *rows: dict[str, Any], before: Any = None) -> None:
    """Write a batch with these outputs, at any location."""
    manifest = manifest_of(batch, write_outputs(location, batch, outputs(*rows)), before)
    BatchOutputs(location).seal(manifest)


def some_batches(files: ApplicationFiles) -> None:
    """Commit four batches of two partitions: ten records of the first, and two of the second."""
    files.commit(records(1, 3))
    files.commit(records(4, 4), records(1, 2, partition=1))
    files.commit()
    files.commit(records(5, 10))


def _rows(path: Path) -> list[tuple[int, int, str]]:
    table = pq.ParquetFile(path).read()
    partition = int(path.parent.name.removeprefix("partition="))
    offsets = table.column("offset").to_pylist()
    return [(partition, offset, event.id) for offset, event in zip(offsets, as_events(table), strict=True)]
