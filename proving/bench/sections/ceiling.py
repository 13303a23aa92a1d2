"""The cost of Spark itself: a Python data source whose rows are made in the reading task, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from wallaroo_spark.columnar import ROW_DDL, ROW_SCHEMA

BATCH_ROWS = 8192
BATCH_BYTES = 8 << 20
"""A record batch has so many rows, and fewer of large payloads, as those of a worker."""
NAME = "bench_ceiling"
NOON = 1_700_000_000_000_000


@dataclass
class Rows(InputPartition):
    """Rows ``first`` to ``last`` with payloads of ``size`` bytes."""

    first: int
    """The number of the first row."""
    last: int
    """The number behind that of the last row."""
    size: int
    """Bytes of a payload."""


class CeilingSource(DataSource):
    """Options: ``rows`` of a batch, ``size`` of a payload, ``until``: a file that ends the rows once it exists.

    A query that is stopped in a batch leaves a reading task with nobody to write to, and Spark's Python daemon prints
    its ``BrokenPipeError``. So a query of this source runs out of rows before it is stopped.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ROW_DDL

    def streamReader(self, schema: Any) -> CeilingReader:
        return CeilingReader(int(self.options["rows"]), int(self.options["size"]), Path(self.options["until"]))


class CeilingReader(DataSourceStreamReader):
    """There is always one more batch, until the file ``until`` exists."""

    def __init__(self, rows: int, size: int, until: Path) -> None:
        self.rows = rows
        self.size = size
        self.until = until

    def initialOffset(self) -> dict[str, Any]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return start if self.until.exists() else {"row": start["row"] + self.rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [Rows(start["row"], end["row"], self.size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return batches(partition.first, partition.last, partition.size)


def batches(first: int, last: int, size: int) -> Iterator[pa.RecordBatch]:
    """Rows as a worker delivers them. Only the ids are new in each batch, so making the rows costs almost nothing."""
    most = max(1, min(BATCH_ROWS, BATCH_BYTES // size))
    made = _columns(min(most, last - first), size)
    for begin in range(first, last, most):
        count = min(most, last - begin)
        made["message_id"] = pa.array(np.arange(begin, begin + most, dtype=np.int64))
        columns = [made[name][:count] for name in ROW_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, schema=ROW_SCHEMA)


def _columns(count: int, size: int) -> dict[str, pa.Array]:
    time = ROW_SCHEMA.field("received_at").type
    return {
        "instance": pa.repeat(pa.scalar("load-0"), count),
        "stream": pa.repeat(pa.scalar("load 1"), count),
        "stream_id": pa.repeat(pa.scalar(1, pa.int64()), count),
        "event_time": pa.nulls(count, time),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.repeat(pa.scalar(b"x" * size), count),
        "flags": pa.repeat(pa.scalar(0, pa.int16()), count),
        "received_at": pa.repeat(pa.scalar(NOON, time), count),
    }
